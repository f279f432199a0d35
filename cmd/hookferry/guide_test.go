package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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

// TestGuideHasEveryKeyAndItsDefault shows that docs/configuration.md lists exactly the keys of
// the configuration file, with the defaults that the server uses.
func TestGuideHasEveryKeyAndItsDefault(t *testing.T) {
	_, text, _ := strings.Cut(guide(t, "configuration.md"), "\n## The file\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var got []string
	var defaults strings.Builder
	opened := map[string]bool{} // mappings that defaults has begun
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.HasPrefix(line, "| `") {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			got = append(got, m[1])
			value := quoted.FindStringSubmatch(cells[2])
			if value == nil || strings.HasPrefix(m[1], "sources") || strings.HasPrefix(m[1], "destinations") {
				continue
			}
			// A file has a nested mapping for each part of the key. No mapping may begin twice.
			names := strings.Split(m[1], ".")
			last, above := len(names)-1, ""
			for depth, name := range names[:last] {
				above += name + "."
				if !opened[above] {
					opened[above] = true
					fmt.Fprintf(&defaults, "%*s%s:\n", 2*depth, "", name)
				}
			}
			fmt.Fprintf(&defaults, "%*s%s: %q\n", 2*last, "", names[last], value[1])
		}
	}
	// The table lists the keys of a mapping instead of the mapping. It lists a list itself.
	var want []string
	keys := config.Keys()
	for _, key := range keys {
		mapping := slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, key+".") && k != key+".*" })
		if !mapping && !strings.HasSuffix(key, "[]") && !strings.HasSuffix(key, ".*") {
			want = append(want, key)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("keys (-want +documented):\n%s", d)
	}

	file := filepath.Join(t.TempDir(), "hookferry.yaml")
	text = defaults.String() + "sources: [{name: a, keys: [k], enabled: true}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := config.Load(file, func(string) string { return "" }, nil)
	if err != nil {
		t.Fatalf("Load refuses the defaults of the guide: %v\n%s", err, text)
	}
	wantDefaults := config.Default()
	wantDefaults.Data = filepath.Join(filepath.Dir(file), wantDefaults.Data)
	ignore := cmpopts.IgnoreFields(config.Settings{}, "Path", "Loaded", "Files", "Sources", "Destinations")
	if d := cmp.Diff(wantDefaults, s, cmpopts.EquateComparable(netip.Prefix{}), ignore); d != "" {
		t.Errorf("defaults (-want +documented):\n%s", d)
	}
	if n := strings.Count(defaults.String(), ": \""); n < 15 {
		t.Errorf("found %d defaults in the guide, want at least 15", n)
	}
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
	serve.Flags().VisitAll(func(f *pflag.Flag) { want = append(want, "--"+f.Name+" "+f.Annotations[variables][0]) })
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("flags (-want +documented):\n%s", d)
	}
}

// TestGuideMarksKeysThatNeedARestart shows that docs/configuration.md marks exactly the keys
// that a running server does not apply.
func TestGuideMarksKeysThatNeedARestart(t *testing.T) {
	marked := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` ↻ \\|").FindAllStringSubmatch(guide(t, "configuration.md"), -1) {
		marked[m[1]] = true
	}
	old := config.Default()
	changed := config.Default()
	changed.Listen, changed.BaseURL, changed.Data = "x", "x", "x"
	changed.Queue.URL = "x"
	changed.TrustedProxies = []netip.Prefix{{}}
	changed.Drain++
	changed.Grace++
	changed.Admin.Listen, changed.Admin.Token = "x", "x"
	changed.Webhooks.Name, changed.DeadLetters.MaxAge, changed.History.MaxAge, changed.Limits.Memory = "x", 1, 1, 1
	changed.Log.Format, changed.Log.Level, changed.Log.Access = "x", -1, 1
	changed.Metrics, changed.Tracing.Endpoint = false, "x"
	restart := changed.NeedRestart(old)
	for key := range marked {
		if !slices.ContainsFunc(restart, func(k string) bool { return key == k || strings.HasPrefix(key, k+".") }) {
			t.Errorf("the guide marks %s, but a running server applies it", key)
		}
	}
	for _, key := range restart {
		found := false
		for _, k := range config.Keys() {
			leaf := k == key || strings.HasPrefix(k, key+".")
			found = found || leaf && marked[k]
		}
		if !found {
			t.Errorf("the guide does not mark %s, but it needs a restart", key)
		}
	}
}

// TestGuidesNameOnlyKnownVariables shows that every HOOKFERRY_ variable in the guides and in
// the deployment files belongs to a flag.
func TestGuidesNameOnlyKnownVariables(t *testing.T) {
	known := map[string]bool{"HOOKFERRY_ENDPOINT": true, "HOOKFERRY_WRITE_KEY": true} // the client reads these
	eachCommand(noEnvironment.commands(), func(_ string, c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			for _, name := range f.Annotations[variables] {
				known[name] = true
			}
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
