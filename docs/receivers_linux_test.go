package docs_test

// The receivers of receivers.md in other languages, run by their interpreters:
// on Linux, where .ci/run installs these.

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

var languages = []struct {
	name, fence, file string
	command           []string // behind it the file
	equal             string   // what compares in constant time
}{
	{"Node", "js", "receiver.mjs", []string{"node"}, "timingSafeEqual("},
	{"Python", "python", "receiver.py", []string{"python3"}, "compare_digest("},
	{"Ruby", "ruby", "receiver.rb", []string{"ruby"}, "secure_compare("},
	{"PHP", "php", "receiver.php", []string{"php", "-S", "127.0.0.1:0"}, "hash_equals("},
}

func TestReceivers(t *testing.T) {
	guide := readText(t, "receivers.md")
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			blocks := regexp.MustCompile("(?s)\n```"+l.fence+"\n(.*?\n)```\n").FindAllStringSubmatch(guide, -1)
			if len(blocks) != 1 {
				t.Fatalf("receivers.md has %d blocks of %s, want 1", len(blocks), l.fence)
			}
			if n := strings.Count(blocks[0][1], l.equal); n < 2 && l.name != "Node" || n == 0 { // Node's is in a function
				t.Errorf("signatures are compared without %s", l.equal)
			}
			file := filepath.Join(t.TempDir(), l.file)
			if err := os.WriteFile(file, []byte(blocks[0][1]), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := exec.LookPath(l.command[0]); err != nil {
				if os.Getenv("CI") != "" {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			command := append(l.command, file)
			port := start(t, command, "WEBHOOK_SECRET="+xSecret, "STANDARD_SECRET="+string(standardSecret))
			testReceiver(t, "http://127.0.0.1:"+port)
			testWithoutSecrets(t, command)
		})
	}
}

// testWithoutSecrets wants a receiver that has no secret to take nothing.
func testWithoutSecrets(t *testing.T, command []string) {
	t.Helper()
	without := []string{"WEBHOOK_SECRET=", "STANDARD_SECRET="}
	if command[0] != "php" {
		c := exec.Command(command[0], command[1:]...)
		c.Env = append(append(os.Environ(), "PORT=0"), without...)
		if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "set WEBHOOK_SECRET") {
			t.Errorf("without secrets: %v, %s", err, out)
		}
		return
	}
	a, err := http.Post("http://127.0.0.1:"+start(t, command, without...)+"/hook", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != http.StatusInternalServerError {
		t.Errorf("without secrets: %s", a.Status)
	}
}

// start starts a receiver, which ends with the test, and returns its port.
func start(t *testing.T, command []string, env ...string) (port string) {
	t.Helper()
	out := &announcement{port: make(chan string, 1)}
	c := exec.Command(command[0], command[1:]...)
	c.Env = append(append(os.Environ(), "PORT=0"), env...)
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		c.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		c.Process.Kill()
		<-exited
		if t.Failed() {
			t.Logf("%s printed:\n%s", command[0], out)
		}
	})
	select {
	case port = <-out.port:
	case <-exited:
		t.Fatalf("%s exited: %v", command[0], c.ProcessState)
	case <-time.After(time.Minute):
		t.Fatalf("%s does not listen", command[0])
	}
	return port
}

// An announcement is what a receiver prints; it sends the port in it.
type announcement struct {
	mu   sync.Mutex
	text bytes.Buffer
	told bool
	port chan string
}

var listening = regexp.MustCompile(`listening on port (\d+)\n|Server \(http://127\.0\.0\.1:(\d+)\) started`)

func (a *announcement) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text.Write(b)
	if m := listening.FindStringSubmatch(a.text.String()); m != nil && !a.told {
		a.told = true
		a.port <- m[1] + m[2]
	}
	return len(b), nil
}

func (a *announcement) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.text.String()
}
