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
		may:  client,
		why:  "a program that only tracks links no forwarder and no store",
	},
	{
		name: "client for programs of v3",
		of:   []string{module + "/analyticsv3"},
		may:  client,
		why:  "it is the client under other names",
	},
	{
		name: "signature",
		of:   []string{module + "/signature"},
		why:  "receivers check signatures in programs that want nothing else of this module",
	},
	{
		name: "inbox",
		of:   []string{module + "/signature/inbox"},
		may:  []string{module + "/signature", module + "/check"},
		why:  "receivers bring the driver of their database, and want nothing else of this module",
	},
	{
		name: "tests for receivers",
		of:   []string{module + "/signature/receivertest"},
		may:  []string{module + "/signature"},
		why:  "it tests receivers of any sender",
	},
	{
		name: "integrations",
		of:   []string{module + "/integrations"},
		why:  "a package of a few lines must not add dependencies to a program",
	},
	{
		name: "check",
		of:   []string{module + "/check"},
		why:  "every package with a configuration imports it",
	},
	{
		name: "internal",
		of:   []string{module + "/internal/..."},
		may:  []string{module + "/internal/..."},
		why:  "every other package depends on these, so they depend on the standard library alone",
	},
	{
		name: "events",
		of:   []string{module + "/event"},
		may:  events,
		why:  "a program that makes the bodies of webhooks does not have to link a forwarder",
	},
	{
		name: "forwarder",
		of:   []string{module + "/webhook"},
		may:  forwarder,
		why:  "the forwarder knows stores by their interface alone, so that each program links the one it uses",
	},
	{
		name: "scheduler",
		of:   []string{module + "/webhook/internal/schedule"},
		why:  "it decides from its arguments, and knows neither stores nor requests",
	},
	{
		name: "histogram",
		of:   []string{module + "/webhook/histogram"},
		why:  "it counts times, whatever takes them",
	},
	{
		name: "steps of servers for tests",
		of:   []string{module + "/step"},
		may:  []string{module + "/internal/..."},
		why:  "they break any server, so they know none",
	},
	{
		name: "receiver for tests",
		of:   []string{module + "/webhook/webhooktest"},
		may:  []string{module + "/signature", module + "/step", module + "/internal/..."},
		why:  "it plays a customer, who has no access to the sender's code",
	},
	{
		name: "collector for tests",
		of:   []string{module + "/analyticstest"},
		may:  []string{module + "/step", module + "/internal/..."},
		why:  "the client's tests use it, so it must not share the client's mistakes",
	},
	{
		name: "audiences",
		of:   []string{module + "/audience"},
		may:  forwarder,
		why:  "a program chooses the roster for its audiences, and a program without audiences links none of this",
	},
	{
		name: "tenants",
		of:   []string{module + "/tenants"},
		may:  forwarder,
		why:  "a program whose tenants are in its own tables links none of this, and one that uses it chooses the store",
	},
	{
		name: "portal",
		of:   []string{module + "/webhook/portal"},
		may:  slices.Concat(forwarder, []string{module + "/tenants", module + "/internal/..."}),
		why:  "it is a part of the embedder's program, which chooses the store and has a router and a session of its own",
	},
	{
		name: "program that mounts the portal in tests",
		of:   []string{module + "/webhook/portal/e2e"},
		may: slices.Concat(stores, []string{module + "/tenants", module + "/webhook/portal", module + "/webhook/filequeue/...", module + "/internal/...",
			"golang.org/x/sys/..."}),
		why: "it is a program of an embedder",
	},
	{
		name: "tests for tenants",
		of:   []string{module + "/tenants/tenantstest"},
		may:  slices.Concat(forwarder, []string{module + "/tenants", "github.com/google/go-cmp/..."}),
		why:  "a store of another project is tested with them",
	},
	{
		name: "tests for stores and rosters",
		of:   []string{module + "/webhook/queuetest", module + "/audience/rostertest"},
		may:  slices.Concat(forwarder, []string{module + "/audience", "github.com/google/go-cmp/..."}),
		why:  "a store of another project is tested with them, and must not link the stores of this one",
	},
	{
		name: "door for authors of stores",
		of:   []string{module + "/webhook/store"},
		may:  events,
		why:  "it is what a store and the forwarder know of each other, so it knows neither",
	},
	{
		name: "memory store",
		of:   []string{module + "/webhook/memqueue", module + "/webhook/internal/..."},
		may:  stores,
		why:  "a store implements interfaces of webhook, and knows neither audiences nor another store",
	},
	{
		name: "file store",
		of:   []string{module + "/webhook/filequeue"},
		may:  stores,
		why:  "a store implements interfaces of webhook, and knows neither audiences nor another store",
	},
	{
		name: "memory roster",
		of:   []string{module + "/audience/memroster"},
		may:  rosters,
		why:  "a roster knows no store, so that a program chooses both",
	},
	{
		name: "file roster",
		of:   []string{module + "/audience/fileroster"},
		may:  slices.Concat(rosters, []string{"go.etcd.io/bbolt/...", "golang.org/x/sys/..."}),
		why:  "a roster knows no store, so that a program chooses both",
	},
	{
		name: "store in PostgreSQL",
		of:   []string{module + "/webhook/pgqueue/..."},
		may: slices.Concat(stores, rosters, []string{module + "/webhook/pgqueue/...", "github.com/jackc/...", "golang.org/x/text/...",
			"golang.org/x/sync/..."}),
		why: "a store implements interfaces of webhook and audience, and knows no other store",
	},
	{
		name: "store in NATS",
		of:   []string{module + "/webhook/natsqueue"},
		may: slices.Concat(stores, rosters, []string{"github.com/nats-io/nats.go/...", "github.com/nats-io/nkeys", "github.com/nats-io/nuid",
			"github.com/klauspost/compress/...", "golang.org/x/crypto/...", "golang.org/x/sys/..."}),
		why: "a store implements interfaces of webhook and audience; only its tests need the server",
	},
	{
		name: "metrics for Prometheus",
		of:   []string{module + "/webhook/webhookprom", module + "/webhook/webhookprom/series"},
		may: slices.Concat(forwarder, []string{module + "/webhook/internal/...", module + "/webhook/webhookprom/series",
			"github.com/prometheus/...", "github.com/beorn7/perks/...", "github.com/cespare/xxhash/v2", "github.com/munnerz/goautoneg",
			"google.golang.org/protobuf/...", "golang.org/x/sys/...", "go.yaml.in/yaml/v2", "github.com/klauspost/compress/..."}),
		why: "it reads the forwarder, for programs that have Prometheus's client already",
	},
	{
		name: "traces for OpenTelemetry",
		of:   []string{module + "/webhook/webhookotel"},
		may: slices.Concat(forwarder, []string{module + "/collector", "go.opentelemetry.io/otel/attribute/...", "go.opentelemetry.io/otel/codes",
			"go.opentelemetry.io/otel/propagation/...", "go.opentelemetry.io/otel/semconv/...", "go.opentelemetry.io/otel/trace/...",
			"go.opentelemetry.io/otel/baggage", "go.opentelemetry.io/otel/internal/...", "github.com/cespare/xxhash/v2"}),
		why: "the program that embeds the forwarder chooses OpenTelemetry's SDK and exporter",
	},
	{
		name: "collector",
		of:   []string{module + "/collector"},
		may:  events,
		why:  "the program that embeds the collector chooses what to do with the calls",
	},
}

// Lists of packages that several walls allow.
var (
	client = []string{module, module + "/internal/...", module + "/check",
		"github.com/hashicorp/go-retryablehttp", "github.com/hashicorp/go-cleanhttp", "github.com/segmentio/backo-go"}
	events    = slices.Concat(client, []string{module + "/event", module + "/integrations"})
	forwarder = slices.Concat(events, []string{module + "/webhook", module + "/webhook/store", module + "/webhook/histogram", module + "/signature",
		module + "/webhook/internal/schedule", module + "/webhook/internal/wire"})
	stores  = slices.Concat(forwarder, []string{module + "/webhook/internal/..."})
	rosters = slices.Concat(forwarder, []string{module + "/audience"})
)

// examples show what can be built with the public API.
var examples = []string{module + "/examples/..."}

// A listedPackage is a package as go list describes it.
type listedPackage struct {
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
func goList(t *testing.T, goos string) map[string]listedPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,Name,GoFiles,Imports,Standard,DepOnly,Module",
		"./...", "./cmd/hookferry/...", "./webhook/natsqueue/...", "./webhook/pgqueue/...", "./webhook/webhookotel/...", "./webhook/webhookprom/...")
	cmd.Env = append(os.Environ(), "GOOS="+goos, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	packages := map[string]listedPackage{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
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

// breaches returns the chain of imports from a package to each forbidden package. A package is
// forbidden if it is outside the standard library and does not match may. breaches does not
// follow the imports of a forbidden package.
func breaches(packages map[string]listedPackage, from string, may []string) [][]string {
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

// TestPackagesImportOnlyWhatTheirWallAllows checks the walls, and that each package has one. It
// also checks that the examples, and the packages of the nested modules, import only public
// packages of other modules. The reason is that a program chooses the version of each module. So
// a module may be built with any later version of another one, and only public packages stay
// compatible. Test files are not checked: they run only in the repository and may import
// everything.
func TestPackagesImportOnlyWhatTheirWallAllows(t *testing.T) {
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
					t.Errorf("no package matches %q: the wall checks nothing", w.of)
				}
			})
		}
		t.Run(goos+"/all", func(t *testing.T) {
			for _, p := range packages {
				walled := matches(examples, p.ImportPath) || matches([]string{module + "/cmd/..."}, p.ImportPath)
				for _, w := range walls {
					walled = walled || matches(w.of, p.ImportPath)
				}
				if !p.DepOnly && len(p.GoFiles) > 0 && !walled {
					t.Errorf("%s has no wall: say in this file what it may import, and why", p.ImportPath)
				}
			}
		})
		t.Run(goos+"/public only", func(t *testing.T) {
			checked := map[string]bool{}
			for _, p := range packages {
				own := p.Module.Path
				if matches(examples, p.ImportPath) {
					own = "examples"
				}
				if p.DepOnly || own == module {
					continue
				}
				checked[own] = true
				for _, imported := range p.Imports {
					// The pages of the portal and of the server are made of the same parts. Both modules are
					// released together, and nobody else can import these.
					if imported == module+"/internal/ui" && own == module+"/cmd/hookferry" {
						continue
					}
					if other := packages[imported].Module.Path; other != own && strings.HasPrefix(other, module) && strings.Contains(imported, "/internal/") {
						t.Errorf("%s imports %s of the module %s.\nIt must not: a later version of that module may not have it, and other programs cannot import it.",
							p.ImportPath, imported, other)
					}
				}
			}
			want := []string{"examples", module + "/cmd/hookferry", module + "/webhook/natsqueue", module + "/webhook/pgqueue", module + "/webhook/webhookotel", module + "/webhook/webhookprom"}
			if got := slices.Sorted(maps.Keys(checked)); !slices.Equal(got, want) {
				t.Errorf("checked the modules %q, want %q", got, want)
			}
		})
	}
}

// TestModulesRequireTheCurrentVersion checks that each module requires the other modules of the
// repository in the version analytics.Version, and that go.work provides exactly these
// versions.
func TestModulesRequireTheCurrentVersion(t *testing.T) {
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
	for _, dir := range []string{"cmd/hookferry", "webhook/natsqueue", "webhook/pgqueue", "webhook/webhookotel", "webhook/webhookprom"} {
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
	if diff := cmp.Diff(required, provided); diff != "" || len(required) != 5 {
		t.Errorf("versions that the go.mod files require and go.work provides, want 5 and the same (-required +provided):\n%s", diff)
	}
}

// TestEachPackageHasOnePackageComment checks that exactly one file of each package has a package
// comment, which begins as the Go convention says.
func TestEachPackageHasOnePackageComment(t *testing.T) {
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
