import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;

/** Knows how fast RocketMQ's own codec is: a file of bodies in base64, one a line, in; nanoseconds for a record out. */
public final class CodecBench {
    private static final long WARM_UP_NS = 2_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        int rounds = Integer.parseInt(arguments[1]);
        int repeats = Integer.parseInt(arguments[2]);
        List<byte[]> bodies = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            bodies.add(Base64.getDecoder().decode(line));
        }
        List<TraceContext> contexts = new ArrayList<>();
        long size = 0;
        for (byte[] body : bodies) {
            contexts.addAll(TraceDataEncoder.decoderFromTraceDataString(new String(body, StandardCharsets.UTF_8)));
            size += body.length;
        }
        contexts.forEach(context -> context.setAccessChannel(AccessChannel.LOCAL));
        long records = contexts.size() * (long) repeats;
        for (long began = System.nanoTime(); System.nanoTime() - began < WARM_UP_NS; ) {
            decode(bodies, 1);
            encode(contexts, 1);
        }
        long decodeNs = Long.MAX_VALUE;
        long encodeNs = Long.MAX_VALUE;
        for (int round = 0; round < rounds; round++) {
            long began = System.nanoTime();
            check("decode", decode(bodies, repeats), records);
            decodeNs = Math.min(decodeNs, System.nanoTime() - began);
            began = System.nanoTime();
            check("encode", encode(contexts, repeats), size * repeats);
            encodeNs = Math.min(encodeNs, System.nanoTime() - began);
        }
        System.out.printf(
            java.util.Locale.ROOT,
            "{\"records\": %d, \"decode_ns\": %.1f, \"encode_ns\": %.1f}%n",
            contexts.size(), decodeNs / (double) records, encodeNs / (double) records);
    }

    private static long decode(List<byte[]> bodies, int repeats) {
        long records = 0;
        for (int at = 0; at < repeats; at++) {
            for (byte[] body : bodies) {
                records += TraceDataEncoder.decoderFromTraceDataString(new String(body, StandardCharsets.UTF_8)).size();
            }
        }
        return records;
    }

    private static long encode(List<TraceContext> contexts, int repeats) {
        long bytes = 0;
        for (int at = 0; at < repeats; at++) {
            for (TraceContext context : contexts) {
                String data = TraceDataEncoder.encoderFromContextBean(context).getTransData();
                bytes += data.getBytes(StandardCharsets.UTF_8).length;
            }
        }
        return bytes;
    }

    private static void check(String step, long found, long expected) {
        if (found != expected) {
            throw new IllegalStateException(step + " did not do its work: " + found + " instead of " + expected);
        }
    }
}
