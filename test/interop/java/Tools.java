import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs the main methods of Kafka's tools, one after another, in one JVM. Each line of standard input is a class and its
 * arguments, parted by U+001F. Answered is what the tool printed on standard output and on standard error, together, then
 * a line that begins with U+001E and holds its exit status.
 */
public final class Tools {
    /** Thrown in the place of an end of the JVM. Some tools catch it, as they do everything, and end once more. */
    private static final class Exited extends RuntimeException {
        Exited() {
            super(null, null, false, false);
        }
    }

    private static ByteArrayOutputStream printed;
    private static String said; // until the tool ended for the first time
    private static int status;

    private static void exit(int code) {
        if (said == null) {
            status = code;
            said = printed.toString(StandardCharsets.UTF_8);
        }
        throw new Exited();
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        PrintStream errors = System.err;
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split("\u001f", -1);
            printed = new ByteArrayOutputStream();
            said = null;
            status = 0;
            PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(both);
            System.setErr(both);
            try {
                Class.forName(words[0]).getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
            } catch (InvocationTargetException e) {
                if (said == null) {
                    status = 1;
                    e.getCause().printStackTrace(both);
                }
            } finally {
                System.setErr(errors);
            }
            if (said == null) said = printed.toString(StandardCharsets.UTF_8);
            answers.print(said);
            answers.print("\n\u001e" + status + "\n");
            answers.flush();
        }
    }
}
