package check

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// program is the path of hookferry, which TestMain builds.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "check")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "hookferry")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "..", "cmd", "hookferry")
	build.Env = append(os.Environ(), "GOWORK=") // build needs the workspace, which has the other modules
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// flags returns the names of the flags of a command, and of their environment variables.
func flags(t *testing.T, command string) map[string]bool {
	t.Helper()
	out, err := exec.Command(program, command, "-h").CombinedOutput()
	if err != nil {
		t.Fatalf("%s -h: %v\n%s", command, err, out)
	}
	known := map[string]bool{}
	for _, name := range regexp.MustCompile(`--[a-z-]+|HOOKFERRY_[A-Z_]+`).FindAllString(string(out), -1) {
		known[name] = true
	}
	return known
}

// checkArguments checks that the arguments of a container are a command and its flags.
func checkArguments(t *testing.T, args []string) {
	t.Helper()
	if len(args) == 0 {
		t.Fatal("the container has no arguments")
	}
	known := flags(t, args[0])
	for _, arg := range args[1:] {
		if strings.HasPrefix(arg, "-") && !known[arg] {
			t.Errorf("hookferry %s has no flag %s", args[0], arg)
		}
	}
}

// start starts the server on free addresses, in an empty folder that it cannot write to. It returns
// the URLs of both listeners.
func start(t *testing.T, env []string, args ...string) (calls, admin string) {
	t.Helper()
	cmd := exec.Command(program, append(args, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0")...)
	cmd.Dir = t.TempDir()
	if err := os.Chmod(cmd.Dir, 0o500); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), env...)
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	page, listening := regexp.MustCompile(`page is at"[ ,]+"?url"?[=:]"?(http://[^"\s]+)/`), regexp.MustCompile(`msg"?[=:]"?listening"?[ ,]+"?address"?[=:]"?([^"\s]+)`)
	var text strings.Builder
	lines := bufio.NewScanner(stderr)
	for calls == "" && lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		if m := page.FindStringSubmatch(lines.Text()); m != nil {
			admin = m[1]
		}
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			calls = "http://" + m[1]
		}
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		for lines.Scan() {
			text.WriteString(lines.Text() + "\n")
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server ended with %v, want status 0:\n%s", err, &text)
		}
	})
	if calls == "" || admin == "" {
		t.Fatalf("the server did not listen:\n%s", &text)
	}
	return calls, admin
}
