package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

// guide returns the text of a file in the folder docs.
func guide(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

var quoted = regexp.MustCompile("`([^`]*)`")

// variableIn returns the environment variable that the help of a flag names.
func variableIn(f *pflag.Flag) string {
	_, name, _ := strings.Cut(f.Usage, "[$")
	return strings.TrimSuffix(name, "]")
}

// TestGuideHasEveryFlagOfServe shows that docs/configuration.md lists exactly the flags of
// serve, each with its variable and its key.
func TestGuideHasEveryFlagOfServe(t *testing.T) {
	text := guide(t, "configuration.md")
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| `([A-Z_]+)`.* \\| (.*) \\|$").FindAllStringSubmatch(text, -1) {
		got = append(got, "--"+m[1]+" "+m[2])
		want := "config"
		if key := quoted.FindStringSubmatch(m[3]); key != nil {
			want = flagOf(strings.ReplaceAll(key[1], "[]", "[0]"))
		}
		if want != m[1] {
			t.Errorf("the guide says that --%s sets %s, want --%s", m[1], m[3], want)
		}
	}
	serve, _, _ := noEnvironment.commands().Find([]string{"serve"})
	var want []string
	serve.Flags().VisitAll(func(f *pflag.Flag) { want = append(want, "--"+f.Name+" "+variableIn(f)) })
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("flags (-want +documented):\n%s", d)
	}
}

// TestGuidesNameOnlyKnownVariables shows that every HOOKFERRY_ variable in the guides and in
// the deployment files belongs to a flag.
func TestGuidesNameOnlyKnownVariables(t *testing.T) {
	known := map[string]bool{
		"HOOKFERRY_ENDPOINT": true, "HOOKFERRY_WRITE_KEY": true, // the client reads these
		"HOOKFERRY_ASK": true, // subjects of NATS
	}
	eachCommand(noEnvironment.commands(), func(_ string, c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			known[variableIn(f)] = true
		})
	})
	root := filepath.Join("..", "..")
	files := []string{filepath.Join(root, "Dockerfile"), filepath.Join(root, "README.md")}
	for _, pattern := range []string{"docs/*.md", "deploy/*.yaml", "deploy/kubernetes/*.yaml", "deploy/systemd/*"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %q, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\bHOOKFERRY_[A-Z_]+`).FindAllString(string(text), -1) {
			if n++; !known[name] {
				t.Errorf("%s: no flag has the variable %s", file, name)
			}
		}
	}
	if n < 20 {
		t.Errorf("found %d variables in the guides, want at least 20", n)
	}
}

// TestSystemdWaitsUntilServeHasStopped shows that systemd waits for longer than serve takes to
// stop by default.
func TestSystemdWaitsUntilServeHasStopped(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "systemd", "hookferry.service"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)min$`).FindSubmatch(text)
	if found == nil {
		t.Fatal("the unit has no TimeoutStopSec in minutes")
	}
	minutes, _ := strconv.Atoi(string(found[1]))
	defaults := config.Default()
	// Closing the store may take twice as long as draining and finishing.
	if stop := defaults.Drain + defaults.Grace; time.Duration(minutes)*time.Minute < 3*stop {
		t.Errorf("TimeoutStopSec is %s min, want at least three times the %v that serve has to drain and finish", found[1], stop)
	}
}
