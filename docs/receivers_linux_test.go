package docs_test

// The tests of the receivers in receivers.md that are written in other languages than Go.

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/soakenv"
	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
)

var languages = []struct {
	name, fence, file string
	command           []string // the interpreter and its arguments; the file follows
	equal             string   // the call that compares in constant time
	install           string
}{
	{"Node", "js", "receiver.mjs", []string{"node"}, "timingSafeEqual(", "apt-get install nodejs"},
	{"Python", "python", "receiver.py", []string{"python3"}, "compare_digest(", "apt-get install python3"},
	{"Ruby", "ruby", "receiver.rb", []string{"ruby"}, "secure_compare(", "apt-get install ruby ruby-webrick"},
	{"PHP", "php", "receiver.php", []string{"php", "-S", "127.0.0.1:0"}, "hash_equals(", "apt-get install php-cli"},
}

// testNoJSON sends bodies that the receiver can never take, with a good signature.
func testNoJSON(t *testing.T, url string) {
	t.Helper()
	for body, want := range map[string]int{"{": 400, strings.Repeat(" ", 1<<20+1): 413} {
		r := testkit.Must(http.NewRequest(http.MethodPost, url, strings.NewReader(body)))
		r.Header.Set(signature.Header, testkit.Must(signature.Sign([]byte(body), xSecret)))
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Errorf("%d bytes that are not JSON: %v, want %d", len(body), err, want)
			continue
		}
		a.Body.Close()
		if a.StatusCode != want {
			t.Errorf("%d bytes that are not JSON: answered %d, want %d", len(body), a.StatusCode, want)
		}
	}
}

var oldSecret = signature.NewStandardSecret()

func TestReceivers(t *testing.T) {
	soakenv.Only(t, "receivers")
	guide, hookferry := readText(t, "receivers.md"), filepath.Join(t.TempDir(), "hookferry")
	if out, err := exec.Command("go", "build", "-o", hookferry, "../cmd/hookferry").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			blocks := regexp.MustCompile("(?s)\n```"+l.fence+"\n(.*?\n)```\n").FindAllStringSubmatch(guide, -1)
			if len(blocks) != 1 {
				t.Fatalf("receivers.md has %d blocks of %s, want 1", len(blocks), l.fence)
			}
			if n := strings.Count(blocks[0][1], l.equal); n < 2 && l.name != "Node" || n == 0 { // the receiver in Node has one call, in a function
				t.Errorf("the receiver calls %s %d times, want it for each comparison of signatures", l.equal, n)
			}
			file := filepath.Join(t.TempDir(), l.file)
			if err := os.WriteFile(file, []byte(blocks[0][1]), 0o600); err != nil {
				t.Fatal(err)
			}
			testkit.Program(t, l.command[0], l.install)
			command := append(l.command, file)
			port := start(t, command, "WEBHOOK_SECRET="+xSecret, "STANDARD_SECRET="+string(standardSecret), "OLD_WEBHOOK_SECRET=0ld", "OLD_STANDARD_SECRET="+string(oldSecret))
			testNoJSON(t, "http://127.0.0.1:"+port+"/hook")
			testReceiver(t, "http://127.0.0.1:"+port, new(net.Dialer).DialContext)
			for path, secret := range map[string][]string{
				"/hook":     {"--secret", xSecret, "--secret", "0ld"},
				"/standard": {"--batches", "--standard-secret", string(standardSecret), "--standard-secret", string(oldSecret)},
			} {
				probe := append([]string{"probe", "http://127.0.0.1:" + port + path, "--changes"}, secret...)
				out, err := exec.Command(hookferry, probe...).CombinedOutput()
				if t.Logf("hookferry %s %s:\n%s", probe[0], probe[1], out); err != nil {
					t.Error(err)
				}
			}
			testWithoutSecrets(t, command)
		})
	}
}

// testWithoutSecrets checks that a receiver without secrets does not start, or that it accepts no
// request.
func testWithoutSecrets(t *testing.T, command []string) {
	t.Helper()
	without := []string{"WEBHOOK_SECRET=", "STANDARD_SECRET="}
	if command[0] != "php" {
		c := exec.Command(command[0], command[1:]...)
		c.Env = append(append(os.Environ(), "PORT=0"), without...)
		if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "set WEBHOOK_SECRET") {
			t.Errorf("a receiver without secrets: %v, want it to end and to ask for secrets; it printed %s", err, out)
		}
		return
	}
	a, err := http.Post("http://127.0.0.1:"+start(t, command, without...)+"/hook", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != http.StatusInternalServerError {
		t.Errorf("a receiver without secrets answered %s, want 500", a.Status)
	}
}

// start starts a receiver and returns its port. The receiver is killed when the test ends.
func start(t *testing.T, command []string, env ...string) (port string) {
	t.Helper()
	c := exec.Command(command[0], command[1:]...)
	c.Env = append(append(os.Environ(), "PORT=0"), env...)
	child := testkit.KillAtEnd(t, c)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s printed:\n%s", command[0], child.Output())
		}
	})
	port, err := child.Await(listening)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

var listening = regexp.MustCompile(`(?:listening on port |Server \(http://127\.0\.0\.1:)(\d+)[)\r\n]`)

// The function in JavaScript records each id once, in sorted order, applies what is new in the order of
// the request, and ends each transaction.
func TestApplyOnceInNode(t *testing.T) {
	testkit.Program(t, "node", "apt-get install nodejs")
	blocks := regexp.MustCompile("(?s)\n```javascript\n(.*?\n)```\n").FindAllStringSubmatch(readText(t, "receivers.md"), -1)
	if len(blocks) != 1 {
		t.Fatalf("receivers.md has %d blocks, want 1", len(blocks))
	}
	out, err := exec.Command("node", "-e", blocks[0][1]+`
		const done = [], ids = new Set(["c"]);
		const db = { query: async (text, [id] = []) => {
			done.push(id ?? text);
			if (id) return { rowCount: ids.has(id) ? 0 : (ids.add(id), 1) };
		} };
		const events = ["b", "c", "a", "b"].map((id) => ({ id, event: "event " + id }));
		(async () => {
			await applyOnce(db, events, async (same, event) => { done.push(same === db && event); });
			await applyOnce(db, [{ id: "d" }], () => { throw new Error("no"); }).catch((error) => done.push(error.message));
			console.log(done.join(","));
		})();`).CombinedOutput()
	const want = "BEGIN,a,b,b,c,event b,event a,COMMIT,BEGIN,d,ROLLBACK,no\n"
	if err != nil || string(out) != want {
		t.Errorf("node printed %s, %v; want %s", out, err, want)
	}
}
