package analytics_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics"
)

const module = "github.com/hookferry/analytics"

// walls restrict imports. The packages that match "of" may import, directly or indirectly,
// only the standard library and the packages that match "may". A pattern that ends in
// "/..." also matches all packages below.
var walls = []struct {
	name string
	of   []string
	may  []string
	why  string
}{
	{
		name: "client",
		of:   []string{module},
		may:  []string{module + "/internal/...", retryablehttp, cleanhttp, backo},
		why:  "a program that only tracks links no forwarder and no store",
	},
	{
		name: "client for programs of v3",
		of:   []string{module + "/analyticsv3"},
		may:  []string{module, module + "/internal/...", retryablehttp, cleanhttp, backo},
		why:  "it is the client under other names",
	},
	{
		name: "signature",
		of:   []string{module + "/signature"},
		why:  "receivers check signatures in programs that want nothing else of us",
	},
	{
		name: "integrations",
		of:   []string{module + "/integrations"},
		may:  []string{module + "/internal/..."},
		why:  "it is a rule of a few lines; who uses it takes on no dependency",
	},
	{
		name: "internal",
		of:   []string{module + "/internal/..."},
		may:  []string{module + "/internal/..."},
		why:  "what everything rests on rests on nothing but the standard library",
	},
	{
		name: "events",
		of:   []string{event},
		may:  []string{module, module + "/integrations", module + "/internal/...", retryablehttp, cleanhttp, backo},
		why:  "whoever makes webhooks of calls links no forwarder for it",
	},
	{
		name: "forwarder",
		of:   []string{module + "/webhook"},
		may: []string{event, module, module + "/signature", module + "/integrations", module + "/internal/...",
			schedule, wire, retryablehttp, cleanhttp, backo},
		why: "the forwarder knows stores by their interface alone, so that each program links the one it uses",
	},
	{
		name: "scheduler",
		of:   []string{schedule},
		why:  "it decides from what it is told, and knows neither stores nor requests",
	},
	{
		name: "receiver for tests",
		of:   []string{module + "/webhook/webhooktest"},
		may:  []string{module + "/signature", module + "/internal/..."},
		why:  "it stands in for a customer, who knows nothing of the sender's insides",
	},
	{
		name: "collector for tests",
		of:   []string{module + "/analyticstest"},
		may:  []string{module + "/internal/..."},
		why:  "the client's own tests may use it, and it must not judge a client by what it shares with it",
	},
	{
		name: "suite for stores",
		of:   []string{module + "/webhook/queuetest"},
		may: []string{event, module + "/webhook", module, module + "/signature", module + "/integrations", module + "/internal/...",
			schedule, wire, retryablehttp, cleanhttp, backo, "github.com/google/go-cmp/..."},
		why: "stores of others are tested with it, and are to link no other store for that",
	},
	{
		name: "audiences",
		of:   []string{audience},
		may: []string{event, module + "/webhook", module, module + "/signature", module + "/integrations", module + "/internal/...",
			schedule, wire, retryablehttp, cleanhttp, backo},
		why: "who has audiences chooses a store for them, and who has none links nothing of them",
	},
	{
		name: "suite for rosters",
		of:   []string{audience + "/rostertest"},
		may: []string{event, audience, module + "/webhook", module, module + "/signature", module + "/integrations", module + "/internal/...",
			schedule, wire, retryablehttp, cleanhttp, backo, "github.com/google/go-cmp/..."},
		why: "rosters of others are tested with it, and are to link no other store for that",
	},
	{
		name: "parts for stores",
		of:   []string{module + "/webhook/storekit"},
		may: []string{event, module + "/webhook", module, module + "/signature", module + "/integrations", module + "/internal/...",
			schedule, wire, retryablehttp, cleanhttp, backo},
		why: "stores of others are made with it, and it knows none of them",
	},
	{
		name: "memory store",
		of:   []string{module + "/webhook/memqueue", module + "/webhook/internal/..."},
		may: []string{event, module + "/webhook", audience, module + "/webhook/storekit", module + "/webhook/internal/...", module, module + "/signature", module + "/integrations",
			module + "/internal/...", retryablehttp, cleanhttp, backo},
		why: "a store implements interfaces of webhook and audience; what else it needs is its own",
	},
	{
		name: "file store",
		of:   []string{module + "/webhook/filequeue"},
		may: []string{module + "/webhook", audience, module + "/webhook/storekit", module + "/webhook/internal/...", module, module + "/event", module + "/signature", module + "/integrations",
			module + "/internal/...", retryablehttp, cleanhttp, backo, "go.etcd.io/bbolt/...", "golang.org/x/sys/..."},
		why: "a store implements interfaces of webhook and audience; what else it needs is its own",
	},
	{
		name: "store in PostgreSQL",
		of:   []string{module + "/webhook/pgqueue/..."},
		may: []string{event, module + "/webhook", audience, module + "/webhook/storekit", module + "/webhook/internal/...", module + "/webhook/pgqueue/...", module, module + "/signature", module + "/integrations",
			module + "/internal/...", retryablehttp, cleanhttp, backo, "github.com/jackc/...", "golang.org/x/text/...", "golang.org/x/sync/..."},
		why: "a store implements interfaces of webhook and audience; what else it needs is its own",
	},
	{
		name: "store in NATS",
		of:   []string{module + "/webhook/natsqueue"},
		may: []string{event, module + "/webhook", audience, module + "/webhook/storekit", module + "/webhook/internal/...", module, module + "/signature", module + "/integrations",
			module + "/internal/...", retryablehttp, cleanhttp, backo, "github.com/nats-io/nats.go/...", "github.com/nats-io/nkeys", "github.com/nats-io/nuid",
			"github.com/klauspost/compress/...", "golang.org/x/crypto/...", "golang.org/x/sys/..."},
		why: "a store implements interfaces of webhook and audience; the server is for its tests alone",
	},
	{
		name: "metrics for Prometheus",
		of:   []string{module + "/webhook/webhookprom", module + "/webhook/webhookprom/series"},
		may: []string{event, module + "/webhook", module + "/webhook/internal/...", module + "/webhook/webhookprom/series", module, module + "/signature", module + "/integrations",
			module + "/internal/...", retryablehttp, cleanhttp, backo, "github.com/prometheus/...", "github.com/beorn7/perks/...", "github.com/cespare/xxhash/v2",
			"github.com/munnerz/goautoneg", "google.golang.org/protobuf/...", "golang.org/x/sys/...", "go.yaml.in/yaml/v2", "github.com/klauspost/compress/..."},
		why: "an observer of the library, for programs that have Prometheus's client already",
	},
	{
		name: "collector",
		of:   []string{module + "/collector"},
		may:  []string{event, module, module + "/integrations", module + "/internal/...", retryablehttp, cleanhttp, backo},
		why:  "the collector hands calls on; how they are kept is the choice of the program around it",
	},
}

const (
	event         = module + "/event"
	audience      = module + "/audience"
	schedule      = module + "/webhook/internal/schedule"
	wire          = module + "/webhook/internal/wire"
	retryablehttp = "github.com/hashicorp/go-retryablehttp"
	cleanhttp     = "github.com/hashicorp/go-cleanhttp"
	backo         = "github.com/segmentio/backo-go"
)

// publicOnly lists the packages that show what can be built with the public API. So they
// may import only public packages and packages below themselves.
var publicOnly = []string{module + "/cmd/...", module + "/examples/..."}

// A listed is a package as described by go list.
type listed struct {
	ImportPath string
	Dir        string
	Name       string
	GoFiles    []string
	Imports    []string
	Standard   bool
	DepOnly    bool
	Module     struct{ Path string }
}

// goList lists the packages of all modules in go.work, and all packages that they import,
// for an operating system.
func goList(t *testing.T, goos string) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Name,GoFiles,Imports,Standard,DepOnly,Module",
		"./...", "./cmd/hookferry/...", "./webhook/natsqueue/...", "./webhook/pgqueue/...", "./webhook/webhookprom/...")
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	packages := map[string]listed{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}

func matches(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
			return path == prefix || strings.HasPrefix(path, prefix+"/")
		}
		return path == pattern
	})
}

// breaches returns the import paths from a package to each forbidden package. Forbidden are
// packages outside the standard library that do not match may. It does not follow the
// imports of a forbidden package.
func breaches(packages map[string]listed, from string, may []string) [][]string {
	var found [][]string
	seen := map[string]bool{from: true}
	var walk func(way []string)
	walk = func(way []string) {
		for _, imported := range packages[way[len(way)-1]].Imports {
			if seen[imported] || packages[imported].Standard {
				continue
			}
			seen[imported] = true
			next := append(slices.Clip(way), imported)
			if !matches(may, imported) {
				found = append(found, next)
				continue
			}
			walk(next)
		}
	}
	walk([]string{from})
	return found
}

func TestImportWalls(t *testing.T) {
	for _, goos := range []string{"linux", "windows"} {
		packages := goList(t, goos)
		for _, w := range walls {
			t.Run(goos+"/"+w.name, func(t *testing.T) {
				matched := false
				for _, p := range packages {
					if p.DepOnly || !matches(w.of, p.ImportPath) {
						continue
					}
					matched = true
					for _, way := range breaches(packages, p.ImportPath, w.may) {
						t.Errorf("%s reaches %s:\n%s\nIt must not: %s.",
							p.ImportPath, way[len(way)-1], strings.Join(way, "\n-> "), w.why)
					}
				}
				if !matched {
					t.Errorf("no package matches %q: the wall guards nothing", w.of)
				}
			})
		}
		t.Run(goos+"/all", func(t *testing.T) {
			for _, p := range packages {
				walled := matches(publicOnly, p.ImportPath)
				for _, w := range walls {
					walled = walled || matches(w.of, p.ImportPath)
				}
				if !p.DepOnly && len(p.GoFiles) > 0 && !walled {
					t.Errorf("%s has no wall: say in this file what it may import, and why", p.ImportPath)
				}
			}
		})
		t.Run(goos+"/public only", func(t *testing.T) {
			for _, pattern := range publicOnly {
				matched := false
				for _, p := range packages {
					if p.DepOnly || !matches([]string{pattern}, p.ImportPath) {
						continue
					}
					matched = true
					for _, imported := range p.Imports {
						if strings.HasPrefix(imported, module) && strings.Contains(imported, "/internal/") && !strings.HasPrefix(imported, module+"/cmd/hookferry/internal/") {
							t.Errorf("%s imports %s.\nIt must not: what it does, anybody can do with the public packages.", p.ImportPath, imported)
						}
					}
				}
				if !matched {
					t.Errorf("no package matches %q: the wall guards nothing", pattern)
				}
			}
		})
	}
}

// TestModulesKeepToPublicPackages checks the imports between the modules of the repository.
// A program chooses the version of each module. So a module may be built with any later
// version of another one, and only public packages stay compatible. Tests run only in the
// repository, and may import everything.
func TestModulesKeepToPublicPackages(t *testing.T) {
	for _, goos := range []string{"linux", "windows"} {
		packages := goList(t, goos)
		checked := map[string]bool{}
		for _, p := range packages {
			if p.DepOnly || p.Module.Path == module {
				continue
			}
			checked[p.Module.Path] = true
			for _, imported := range p.Imports {
				if other := packages[imported].Module.Path; other != p.Module.Path && strings.HasPrefix(other, module) && strings.Contains(imported, "/internal/") {
					t.Errorf("%s: %s imports %s of the module %s.\nIt must not: a later version of that module may not have it.",
						goos, p.ImportPath, imported, other)
				}
			}
		}
		want := []string{module + "/cmd/hookferry", module + "/webhook/natsqueue", module + "/webhook/pgqueue", module + "/webhook/webhookprom"}
		if got := slices.Sorted(maps.Keys(checked)); !slices.Equal(got, want) {
			t.Errorf("%s: checked the modules %q, want %q", goos, got, want)
		}
	}
}

// TestModulesRequireVersion checks that each module requires the other modules of the
// repository in the version analytics.Version, and that go.work replaces exactly that
// version.
func TestModulesRequireVersion(t *testing.T) {
	provided := map[string]bool{}
	work, err := os.ReadFile("go.work")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(work)) {
		if f := strings.Fields(line); len(f) == 4 && f[2] == "=>" {
			provided[f[0]+" "+f[1]] = true
		}
	}
	required := map[string]bool{}
	for _, dir := range []string{"cmd/hookferry", "webhook/natsqueue", "webhook/pgqueue", "webhook/webhookprom"} {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(mod)) {
			f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
			if len(f) != 2 || f[0] == "module" || f[0] != module && !strings.HasPrefix(f[0], module+"/") {
				continue
			}
			required[f[0]+" "+f[1]] = true
			if f[1] != "v"+analytics.Version {
				t.Errorf("%s/go.mod requires %s in version %s, want v%s", dir, f[0], f[1], analytics.Version)
			}
		}
	}
	if diff := cmp.Diff(required, provided); diff != "" || len(required) != 4 {
		t.Errorf("what go.mod files require and go.work provides (-required +provided):\n%s", diff)
	}
}

// TestPackageComments requires exactly one package comment for each package.
func TestPackageComments(t *testing.T) {
	for _, p := range goList(t, "linux") {
		if p.DepOnly || len(p.GoFiles) == 0 {
			continue
		}
		var files []string
		var comment *ast.CommentGroup
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if f.Doc != nil {
				files = append(files, name)
				comment = f.Doc
			}
		}
		if len(files) != 1 {
			t.Errorf("%s has package comments in %d files %q, want one", p.ImportPath, len(files), files)
			continue
		}
		start := "Package " + p.Name + " "
		if p.Name == "main" {
			start = "Command " + filepath.Base(p.ImportPath) + " "
		}
		if text := comment.Text(); !strings.HasPrefix(text, start) {
			t.Errorf("%s: the package comment in %s begins %q, want %q", p.ImportPath, files[0], text[:min(len(text), len(start))], start)
		}
	}
}
