import java.io.File;
import java.io.FileOutputStream;
import java.nio.file.Files;
import java.util.Properties;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.minikdc.MiniKdc;
import org.apache.hadoop.security.UserGroupInformation;

/**
 * A Kerberos KDC, a NameNode and a DataNode, with the settings of Hadoop's SaslDataTransferTestCase. The argument is a directory
 * on the class path with ssl-server.xml; it gets krb5.conf, user.keytab and the client's core-site.xml.
 */
public class SecureHdfs {
  public static void main(String[] arguments) throws Exception {
    File home = new File(arguments[0]);
    Properties wanted = MiniKdc.createConf();
    wanted.setProperty(MiniKdc.KDC_BIND_ADDRESS, "127.0.0.1");
    MiniKdc kdc = new MiniKdc(wanted, home);
    kdc.start();
    Files.copy(kdc.getKrb5conf().toPath(), home.toPath().resolve("krb5.conf"));
    String servers = new File(home, "servers.keytab").getPath();
    kdc.createPrincipal(new File(servers), "hdfs/localhost", "HTTP/localhost");
    kdc.createPrincipal(new File(home, "user.keytab"), "user");

    Configuration settings = new HdfsConfiguration();
    settings.set("hadoop.security.authentication", "kerberos");
    for (String server : new String[] {"namenode", "datanode"}) {
      settings.set("dfs." + server + ".kerberos.principal", "hdfs/localhost@" + kdc.getRealm());
      settings.set("dfs." + server + ".keytab.file", servers);
      settings.set("dfs." + server + ".https-address", "localhost:0");
    }
    for (String prefix : new String[] {"dfs.web.authentication.", "hadoop.http.authentication."}) {
      settings.set(prefix + "type", "kerberos");
      settings.set(prefix + "kerberos.principal", "HTTP/localhost@" + kdc.getRealm());
      settings.set(prefix + "kerberos.keytab", servers);
    }
    settings.setBoolean("dfs.block.access.token.enable", true);
    settings.set("dfs.data.transfer.protection", "authentication");
    settings.set("dfs.http.policy", "HTTPS_ONLY");
    UserGroupInformation.setConfiguration(settings);
    UserGroupInformation.loginUserFromKeytab("hdfs/localhost@" + kdc.getRealm(), servers);
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings, home).build();
    cluster.waitActive();
    Path root = new Path("/traces");
    cluster.getFileSystem().mkdirs(root);
    cluster.getFileSystem().setOwner(root, "user", null);

    Configuration client = new Configuration(false);
    client.set("fs.defaultFS", cluster.getURI().toString());
    client.set("dfs.namenode.https-address", "localhost:" + cluster.getNameNode().getHttpsAddress().getPort());
    for (String name : new String[] {"hadoop.security.authentication", "dfs.namenode.kerberos.principal",
        "dfs.data.transfer.protection", "dfs.http.policy"}) {
      client.set(name, settings.get(name));
    }
    try (FileOutputStream file = new FileOutputStream(new File(home, "core-site.xml"))) {
      client.writeXml(file);
    }
    System.out.println("HDFS is up");
    Thread.currentThread().join();
  }
}
