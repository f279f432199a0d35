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

// guide reads a file of docs.
func guide(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

var quoted = regexp.MustCompile("`([^`]*)`")

// TestConfigurationKeys holds docs/configuration.md to the keys that there are,
// and to their defaults.
func TestConfigurationKeys(t *testing.T) {
	_, text, _ := strings.Cut(guide(t, "configuration.md"), "\n## The file\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var got []string
	var defaults strings.Builder
	opened := map[string]bool{} // mappings that defaults has
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
			// As a file has it: a mapping for each key, and so of no key twice.
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
	// A mapping has its keys in the table, and a list itself.
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
		t.Errorf("keys (-there +documented):\n%s", d)
	}

	file := filepath.Join(t.TempDir(), "hookferry.yaml")
	text = defaults.String() + "sources: [{name: a, keys: [k], enabled: true}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := config.Load(file, func(string) string { return "" }, nil)
	if err != nil {
		t.Fatalf("the defaults of the guide are refused: %v\n%s", err, text)
	}
	wantDefaults := config.Default()
	wantDefaults.Data = filepath.Join(filepath.Dir(file), wantDefaults.Data)
	ignore := cmpopts.IgnoreFields(config.Settings{}, "Path", "Loaded", "Files", "Sources", "Destinations")
	if d := cmp.Diff(wantDefaults, s, cmpopts.EquateComparable(netip.Prefix{}), ignore); d != "" {
		t.Errorf("defaults (-true +documented):\n%s", d)
	}
	if n := strings.Count(defaults.String(), ": \""); n < 15 {
		t.Errorf("%d defaults are documented: they were not found", n)
	}
}

// TestConfigurationFlags holds docs/configuration.md to the flags of serve.
func TestConfigurationFlags(t *testing.T) {
	text := guide(t, "configuration.md")
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| `([A-Z_]+)`.* \\| (.*) \\|$").FindAllStringSubmatch(text, -1) {
		got = append(got, "--"+m[1]+" "+m[2])
		want := "config"
		if key := quoted.FindStringSubmatch(m[3]); key != nil {
			want = flagOf(strings.ReplaceAll(key[1], "[]", "[0]"))
		}
		if want != m[1] {
			t.Errorf("--%s does not stand for %s", m[1], m[3])
		}
	}
	serve, _, _ := noEnvironment.commands().Find([]string{"serve"})
	var want []string
	serve.Flags().VisitAll(func(f *pflag.Flag) { want = append(want, "--"+f.Name+" "+f.Annotations[variables][0]) })
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("flags (-there +documented):\n%s", d)
	}
}

// TestRestartKeys holds the marks of docs/configuration.md to what a server that
// runs does not change.
func TestRestartKeys(t *testing.T) {
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
			t.Errorf("%s is marked, and counts at once", key)
		}
	}
	for _, key := range restart {
		found := false
		for _, k := range config.Keys() {
			leaf := k == key || strings.HasPrefix(k, key+".")
			found = found || leaf && marked[k]
		}
		if !found {
			t.Errorf("%s counts after a restart, and is not marked", key)
		}
	}
}

// TestGuideVariables holds the variables that the guides and what is deployed
// name to the flags that there are.
func TestGuideVariables(t *testing.T) {
	known := map[string]bool{"HOOKFERRY_ENDPOINT": true, "HOOKFERRY_WRITE_KEY": true} // the client's own
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
		t.Errorf("%d variables are named: they were not found", n)
	}
}

// TestUnitLetsServeStop: systemd waits for longer than serve takes to stop by default.
func TestUnitLetsServeStop(t *testing.T) {
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
	// The store has twice as long again to close.
	if stop := defaults.Drain + defaults.Grace; time.Duration(minutes)*time.Minute < 3*stop {
		t.Errorf("TimeoutStopSec is %s min; serve has %v to drain and finish, and then closes the store", found[1], stop)
	}
}
