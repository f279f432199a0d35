package config

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v4"

	"github.com/hookferry/analytics/webhook"
)

// guide returns the text of docs/configuration.md.
func guide(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

// keys returns every key that the file may have, such as "sources[].keys[]". Where users choose the
// names of a mapping, the key has "*", as in "tracing.headers.*".
func keys() []string {
	var all []string
	var walk func(key string, t reflect.Type)
	walk = func(key string, t reflect.Type) {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if key != "" && !slices.Contains(all, key) { // that of an embedded struct is there already
			all = append(all, key)
		}
		switch {
		case isScalar(t):
		case t.Kind() == reflect.Slice:
			walk(key+"[]", t.Elem())
		case t.Kind() == reflect.Map:
			walk(key+".*", t.Elem())
		default:
			for f := range t.Fields() {
				if name := keyIn(f); name != "" || f.Anonymous {
					walk(strings.TrimSuffix(under(key, name), "."), f.Type)
				}
			}
			if t == reflect.TypeFor[webhook.Retries]() {
				all = append(all, key+".standard")
			}
		}
	}
	walk("", reflect.TypeFor[Settings]())
	return all
}

var quoted = regexp.MustCompile("`([^`]*)`")

// TestGuideHasEveryKeyAndItsDefault shows that docs/configuration.md lists exactly the keys of
// the configuration file, with the defaults that the server uses.
func TestGuideHasEveryKeyAndItsDefault(t *testing.T) {
	_, text, _ := strings.Cut(guide(t), "\n## The file\n")
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
	all := keys()
	for _, key := range all {
		mapping := slices.ContainsFunc(all, func(k string) bool { return strings.HasPrefix(k, key+".") && k != key+".*" })
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
	text = defaults.String() + "sources: [{name: a, keys: [k], disabled: false}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(file, func(string) string { return "" }, nil)
	if err != nil {
		t.Fatalf("Load refuses the defaults of the guide: %v\n%s", err, text)
	}
	wantDefaults := Default()
	wantDefaults.Data = filepath.Join(filepath.Dir(file), wantDefaults.Data)
	ignore := cmpopts.IgnoreFields(Settings{}, "Path", "Loaded", "Files", "Sources", "Destinations")
	if d := cmp.Diff(wantDefaults, s, cmpopts.EquateComparable(netip.Prefix{}), ignore); d != "" {
		t.Errorf("defaults (-want +documented):\n%s", d)
	}
	if n := strings.Count(defaults.String(), ": \""); n < 15 {
		t.Errorf("found %d defaults in the guide, want at least 15", n)
	}
}

// TestGuideMarksKeysThatNeedARestart shows that docs/configuration.md marks exactly the keys
// that a running server does not apply.
func TestGuideMarksKeysThatNeedARestart(t *testing.T) {
	marked := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` ↻ \\|").FindAllStringSubmatch(guide(t), -1) {
		marked[m[1]] = true
	}
	old := Default()
	changed := Default()
	changed.Listen, changed.BaseURL, changed.Data = "x", "x", "x"
	changed.Queue.URL = "x"
	changed.TrustedProxies = []netip.Prefix{{}}
	changed.Drain++
	changed.Grace++
	changed.Admin.Listen, changed.Admin.Token = "x", "x"
	changed.Webhooks.Name, changed.Backlog.MaxAge, changed.DeadLetters.MaxAge, changed.History.MaxAge, changed.Limits.Memory = "x", 1, 1, 1, 1
	changed.Log.Format, changed.Log.Level, changed.Log.Access = "x", -1, 1
	changed.Metrics, changed.Tracing.Endpoint = false, "x"
	restart := changed.AwaitRestart(old)
	for key := range marked {
		if !slices.ContainsFunc(restart, func(k string) bool { return key == k || strings.HasPrefix(key, k+".") }) {
			t.Errorf("the guide marks %s, but a running server applies it", key)
		}
	}
	for _, key := range restart {
		found := false
		for _, k := range keys() {
			leaf := k == key || strings.HasPrefix(k, key+".")
			found = found || leaf && marked[k]
		}
		if !found {
			t.Errorf("the guide does not mark %s, but it needs a restart", key)
		}
	}
}

// TestGuidesHaveValidSettings loads the blocks of settings in the guides. The rest of the file, the
// variables and the files that they name are those of the test.
func TestGuidesHaveValidSettings(t *testing.T) {
	n := 0
	for _, name := range []string{"configuration.md", "tracing.md"} {
		page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
			n++
			text := m[1]
			if !strings.Contains(text, "sources:") {
				text += "sources: [{name: a, keys: [k]}]\n"
			}
			dir := t.TempDir()
			for file, content := range map[string]string{"hookferry.yaml": text, "otlp-token": "secret"} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Load(filepath.Join(dir, "hookferry.yaml"), func(string) string { return "key" }, nil); err != nil {
				t.Errorf("docs/%s: %v", name, err)
			}
		}
	}
	if n < 2 {
		t.Errorf("found %d blocks of settings, want at least 2", n)
	}
}

// TestScrapeConfiguration checks that the settings for Prometheus in the guide are YAML, and scrape the
// server at its default address.
func TestScrapeConfiguration(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	type job struct {
		Name   string `yaml:"job_name"`
		Static []struct {
			Targets []string
		} `yaml:"static_configs"`
	}
	type rules struct {
		Name  string
		Rules []struct {
			Alert, Expr, For string
			Annotations      map[string]string
		}
	}
	var all struct {
		Jobs   []job `yaml:"scrape_configs"`
		Groups []rules
	}
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(strings.ReplaceAll(string(page), "\r\n", "\n"), -1) {
		d := yaml.NewDecoder(strings.NewReader(m[1]))
		d.KnownFields(true)
		if err := d.Decode(&all); err != nil {
			t.Error(err)
		}
	}
	if len(all.Groups) != 1 || len(all.Groups[0].Rules) < 3 {
		t.Errorf("the guide has the rules %+v, want one group", all.Groups)
	}
	want := []job{{Name: "hookferry", Static: []struct{ Targets []string }{{Targets: []string{Default().Admin.Listen}}}}}
	if d := cmp.Diff(want, all.Jobs); d != "" {
		t.Errorf("the guide scrapes (-want +got):\n%s", d)
	}
}
