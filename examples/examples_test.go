// Package examples_test builds and runs the examples, as a reader would.
package examples_test

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/testkit"
	"github.com/hookferry/analytics/signature"
)

// folder has the programs of the examples. TestMain builds them once.
var folder string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if folder, err = os.MkdirTemp("", "examples"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	build := exec.Command("go", "build", "-o", folder+string(filepath.Separator), "./...")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return 1
	}
	return m.Run()
}

func command(name string, args ...string) *exec.Cmd {
	return exec.Command(filepath.Join(folder, name), args...)
}

// TestExamplesPrintTheExpectedLines runs the examples that end by themselves.
func TestExamplesPrintTheExpectedLines(t *testing.T) {
	for _, tt := range []struct {
		name string
		want []string // regular expressions, each of which matches one line
	}{
		{"quickstart", []string{
			`^signature ok  \{"version":1,"type":"identify","userId":"u1","traits":\{"plan":"pro"\},`,
			`^signature ok  \{"version":1,"type":"track","userId":"u1","event":"Signed Up","properties":\{"seats":3\},`,
			`^signature ok  \{"version":1,"type":"page","userId":"u1",`,
			`^signature ok  \{"version":1,"type":"screen","userId":"u1",`,
			`^signature ok  \{"version":1,"type":"group","userId":"u1","groupId":"g1",`,
			`^signature ok  \{"version":1,"type":"alias","Previous ID":"a1","User ID":"u1",`,
		}},
		{"embed", []string{
			`^webhook: \{"version":1,"type":"track","userId":"u1","event":"Order Placed",`,
		}},
		{"import", []string{
			`"messageId":"order-1001",.*"originalTimestamp":"2019-03-01T09:12:44.000Z"`,
			`"messageId":"order-1002",.*"originalTimestamp":"2019-11-30T22:59:59.500Z"`,
			`"messageId":"order-1003",.*"originalTimestamp":"2021-06-05T07:00:00.000Z"`,
			`"messageId":"order-1004",.*"originalTimestamp":"2024-02-29T12:00:00.000Z"`,
			`^imported 4 orders$`,
		}},
		{"sharded", []string{
			`^customer-0 is in b; then in b$`,
			`^customer-1 is in b; then in b$`,
			`^customer-2 is in c; then in b$`,
			`^customer-3 is in a; then in a$`,
			`^customer-4 is in b; then in b$`,
			`^customer-5 is in c; then in a$`,
			`^12 webhooks arrived$`,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, err := command(tt.name).CombinedOutput()
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			if len(lines) != len(tt.want) {
				t.Errorf("printed %d lines, want %d", len(lines), len(tt.want))
			}
			for _, want := range tt.want {
				n := 0
				for _, line := range lines {
					if regexp.MustCompile(want).MatchString(line) {
						n++
					}
				}
				if n != 1 {
					t.Errorf("%d lines match %q, want 1", n, want)
				}
			}
			if t.Failed() {
				t.Logf("printed:\n%s", out)
			}
		})
	}
}

// TestReceiverProcessesEachSignedWebhookOnce sends signed webhooks to the receiver, one of them
// twice, and webhooks without a valid signature.
func TestReceiverProcessesEachSignedWebhookOnce(t *testing.T) {
	receiver := command("receiver", "-listen", "127.0.0.1:0")
	receiver.Env = append(os.Environ(), "WEBHOOK_SECRET=s3cret")
	child := testkit.KillAtEnd(t, receiver)
	url, err := child.Await(regexp.MustCompile(`listening on (.*)\n`))
	if err != nil {
		t.Fatal(err)
	}

	post := func(body, signedWith string) int {
		r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if signedWith != "" {
			s, err := signature.Sign([]byte(body), signature.Secret(signedWith))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set(signature.Header, s)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	const track = `{"type":"track","userId":"u1","event":"Signed Up","messageId":"m1"}`
	const other = `{"type":"track","userId":"u2","event":"Signed Up","messageId":"m2"}`
	for _, tt := range []struct {
		name, body, secret string
		want               int
	}{
		{"signed", track, "s3cret", 200},
		{"signed, a second time", track, "s3cret", 200},
		{"not signed", other, "", 401},
		{"signed with another secret", other, "secret", 401},
		{"another message", other, "s3cret", 200},
	} {
		if got := post(tt.body, tt.secret); got != tt.want {
			t.Errorf("%s: status %d, want %d", tt.name, got, tt.want)
		}
	}
	// The receiver prints a message before it answers, so all lines are there.
	child.Kill()
	_, worked, _ := strings.Cut(child.Output(), url+"\n")
	if strings.Count(worked, "\n") != 2 || !strings.Contains(worked, "of user u1\n") || !strings.Contains(worked, "of user u2\n") {
		t.Errorf("the receiver printed\n%s\nwant one line for u1 and one for u2", worked)
	}
}

// Without a secret, the receiver would accept requests from anybody. So it does not start.
func TestReceiverDoesNotStartWithoutASecret(t *testing.T) {
	receiver := command("receiver", "-listen", "127.0.0.1:0")
	receiver.Env = append(os.Environ(), "WEBHOOK_SECRET=")
	if out, err := receiver.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("WEBHOOK_SECRET")) {
		t.Errorf("the receiver ended with %v, want an error that names WEBHOOK_SECRET; it printed %s", err, out)
	}
}

// The main file of each example has fewer than 60 lines of code, that of a receiver with its database
// fewer than 90, and that of a whole shop fewer than 250.
func TestExamplesAreShort(t *testing.T) {
	files, err := filepath.Glob("*/main.go")
	if err != nil || len(files) != 7 {
		t.Fatalf("found the examples %q, %v, want 7", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				n++
			}
		}
		most := 60
		switch filepath.Dir(file) {
		case "inbox":
			most = 90
		case "saas":
			most = 250
		}
		if n >= most {
			t.Errorf("%s has %d lines of code, want fewer than %d", file, n, most)
		}
	}
}
