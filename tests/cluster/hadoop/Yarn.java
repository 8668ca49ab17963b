import java.io.FileOutputStream;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** A ResourceManager and a NodeManager; their settings go to the file that the argument names. */
public class Yarn {
  public static void main(String[] arguments) throws Exception {
    YarnConfiguration settings = new YarnConfiguration();
    settings.set("yarn.resourcemanager.hostname", "127.0.0.1");
    settings.setInt("yarn.nodemanager.resource.memory-mb", 8192);
    settings.setInt("yarn.nodemanager.resource.cpu-vcores", 4);
    settings.setInt("yarn.scheduler.minimum-allocation-mb", 256);
    settings.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
    settings.setBoolean("yarn.nodemanager.pmem-check-enabled", false);
    settings.set("yarn.scheduler.capacity.root.queues", "default");
    settings.set("yarn.scheduler.capacity.root.default.capacity", "100");
    settings.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
    MiniYARNCluster cluster = new MiniYARNCluster("spark", 1, 1, 1);
    cluster.init(settings);
    cluster.start();
    Configuration own = new Configuration(false); // the other settings are defaults, which would hide those of HDFS
    for (Map.Entry<String, String> setting : cluster.getConfig()) {
      if (setting.getKey().startsWith("yarn.")) {
        own.set(setting.getKey(), cluster.getConfig().get(setting.getKey()));
      }
    }
    try (FileOutputStream file = new FileOutputStream(arguments[0])) {
      own.writeXml(file);
    }
    System.out.println("YARN is up");
    Thread.currentThread().join();
  }
}
