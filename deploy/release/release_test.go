package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

var (
	made   = flag.String("release", "", "`folder` with a release that this command has made")
	unpack = flag.String("unpack", "", "`folder` for the files of the image for this system")
)

// madeRelease returns the files of the release in -release, by name. Without -release it skips the
// test.
func madeRelease(t *testing.T) map[string][]byte {
	t.Helper()
	if *made == "" {
		t.Skip("needs a release: .ci/package makes one and runs this")
	}
	files := map[string][]byte{}
	list, err := os.ReadDir(*made)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		files[e.Name()] = must(os.ReadFile(filepath.Join(*made, e.Name())))(t)
	}
	return files
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// archives returns the names of the archives of a release.
func archives(files map[string][]byte) (list []string) {
	for name := range files {
		if strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".zip") {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// A packedFile has the properties of a file or folder in an archive that the tests check.
type packedFile struct {
	Name  string
	Mode  os.FileMode
	Owner int
	When  time.Time
}

// unpacked returns the files and folders of an archive, and the bytes of the files.
func unpacked(t *testing.T, name string, archive []byte) ([]packedFile, map[string][]byte) {
	t.Helper()
	list, files := []packedFile{}, map[string][]byte{}
	if strings.HasSuffix(name, ".zip") {
		z := must(zip.NewReader(bytes.NewReader(archive), int64(len(archive))))(t)
		for _, f := range z.File {
			list = append(list, packedFile{f.Name, f.Mode(), 0, f.Modified.UTC()})
			files[f.Name] = must(io.ReadAll(must(f.Open())(t)))(t)
		}
		return list, files
	}
	var from io.Reader = bytes.NewReader(archive)
	if strings.HasSuffix(name, ".gz") {
		from = must(gzip.NewReader(from))(t)
	}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != h.Gid || h.Uname != "" || h.Gname != "" {
			t.Errorf("%s: %s belongs to the user %d %q and the group %d %q, want the same number and no names", name, h.Name, h.Uid, h.Uname, h.Gid, h.Gname)
		}
		list = append(list, packedFile{h.Name, h.FileInfo().Mode(), h.Uid, h.ModTime.UTC()})
		files[h.Name] = must(io.ReadAll(r))(t)
	}
}

// packedProgram returns the program in an archive, and its build information.
func packedProgram(t *testing.T, name string, archive []byte) ([]byte, *debug.BuildInfo) {
	t.Helper()
	_, files := unpacked(t, name, archive)
	for file, b := range files {
		if base := path.Base(file); base == "hookferry" && !strings.HasSuffix(file, "/") || base == "hookferry.exe" {
			return b, must(buildinfo.Read(bytes.NewReader(b)))(t)
		}
	}
	t.Fatalf("%s has no program", name)
	return nil, nil
}

func TestArchivesHaveTheProgram(t *testing.T) {
	files := madeRelease(t)
	list := archives(files)
	if len(list) == 0 {
		t.Fatal("the release has no archives")
	}
	for _, name := range list {
		t.Run(name, func(t *testing.T) {
			b, info := packedProgram(t, name, files[name])
			if len(b) > 26_000_000 {
				t.Errorf("the program has %d bytes, want at most 26 MB", len(b))
			}
			stem := strings.TrimSuffix(strings.TrimSuffix(name, ".zip"), ".tar.gz")
			system, arch := setting(info, "GOOS"), setting(info, "GOARCH")
			if want := "hookferry_" + info.Main.Version + "_" + system + "_" + arch; stem != want {
				t.Errorf("the archive has the program of %s", want)
			}
			for key, want := range map[string]string{"CGO_ENABLED": "0", "-trimpath": "true", "vcs.modified": "false"} {
				if got := setting(info, key); got != want {
					t.Errorf("%s is %q, want %q", key, got, want)
				}
			}
			when := must(time.Parse(time.RFC3339, setting(info, "vcs.time")))(t)
			want := []packedFile{
				{stem + "/", os.ModeDir | 0o755, 0, when},
				{stem + "/hookferry", 0o755, 0, when},
				{stem + "/LICENSE", 0o644, 0, when},
				{stem + "/hookferry.service", 0o644, 0, when},
			}
			switch system {
			case "windows":
				want = want[1:3]
				want[0].Name += ".exe"
			case "darwin", "freebsd":
				want = want[:3]
			}
			got, _ := unpacked(t, name, files[name])
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("contents (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChecksumsCoverAllFiles(t *testing.T) {
	files := madeRelease(t)
	var want strings.Builder
	for _, e := range must(os.ReadDir(*made))(t) {
		if e.Name() != "SHA256SUMS" && e.Name() != "NOTES.md" {
			fmt.Fprintf(&want, "%x  %s\n", sha256.Sum256(files[e.Name()]), e.Name())
		}
	}
	if diff := cmp.Diff(want.String(), string(files["SHA256SUMS"])); diff != "" {
		t.Errorf("SHA256SUMS (-want +got):\n%s", diff)
	}
}

// TestBillsOfMaterialsListTheModules checks each bill of materials against the schema of CycloneDX,
// which the authors of the format publish with their library. The bill lists the modules that the
// program was built from.
func TestBillsOfMaterialsListTheModules(t *testing.T) {
	files := madeRelease(t)
	library := strings.TrimSpace(string(must(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output())(t)))
	schemas := jsonschema.NewCompiler()
	for name, file := range map[string]string{
		"bom-1.6":  "bom-1.6.schema.json",
		"spdx":     "spdx.schema.json",
		"jsf-0.82": "jsf-0.82.schemax.json",
	} {
		document := must(jsonschema.UnmarshalJSON(bytes.NewReader(must(os.ReadFile(filepath.Join(library, "schema", file)))(t))))(t)
		if err := schemas.AddResource("http://cyclonedx.org/schema/"+name+".schema.json", document); err != nil {
			t.Fatal(err)
		}
	}
	schema := must(schemas.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json"))(t)
	for _, name := range archives(files) {
		t.Run(name, func(t *testing.T) {
			text := files[strings.TrimSuffix(strings.TrimSuffix(name, ".zip"), ".tar.gz")+".cdx.json"]
			if err := schema.Validate(must(jsonschema.UnmarshalJSON(bytes.NewReader(text)))(t)); err != nil {
				t.Error(err)
			}
			var bom cyclonedx.BOM
			if err := cyclonedx.NewBOMDecoder(bytes.NewReader(text), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
				t.Fatal(err)
			}
			b, info := packedProgram(t, name, files[name])
			main := bom.Metadata.Component
			if hash := fmt.Sprintf("%x", sha256.Sum256(b)); main.Version != info.Main.Version || (*main.Hashes)[0].Value != hash {
				t.Errorf("the bill describes the program %s with the hash %s, want %s with %s", main.Version, (*main.Hashes)[0].Value, info.Main.Version, hash)
			}
			want := []string{"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}
			for _, m := range info.Deps {
				want = append(want, "pkg:golang/"+strings.ToLower(m.Path)+"@"+strings.ReplaceAll(m.Version, "+", "%2B"))
				if m.Sum == "" {
					t.Errorf("the module %s %s has no checksum, want a published module", m.Path, m.Version)
				}
			}
			var got []string
			for _, c := range *bom.Components {
				got = append(got, c.PackageURL)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("components (-want +got):\n%s", diff)
			}
		})
	}
}

func TestImageHasTheProgramsOfTheArchives(t *testing.T) {
	files := madeRelease(t)
	dir := t.TempDir()
	var programs []string // archives with programs for Linux
	stem := ""
	for _, name := range archives(files) {
		if before, _, linux := strings.Cut(name, "_linux_"); linux {
			programs, stem = append(programs, name), before
		}
	}
	_, parts := unpacked(t, "image.tar", files[stem+"_image.tar"])
	for name, b := range parts {
		if strings.HasSuffix(name, "/") {
			continue
		}
		if err := os.MkdirAll(filepath.Join(dir, path.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	top := must(layout.ImageIndexFromPath(dir))(t)
	if err := validate.Index(top); err != nil { // checks each digest and size, and the references between the parts
		t.Error(err)
	}
	manifest := must(top.IndexManifest())(t)
	if n := len(manifest.Manifests); n != 1 {
		t.Fatalf("%d images, want 1", n)
	}
	index := must(top.ImageIndex(manifest.Manifests[0].Digest))(t)
	platforms := map[string]v1.Image{} // by architecture
	for _, d := range must(index.IndexManifest())(t).Manifests {
		if d.Platform.OS != "linux" || (d.Platform.Variant == "v7") != (d.Platform.Architecture == "arm") {
			t.Errorf("the release has an image for %s, want only platforms of the archives", d.Platform)
		}
		platforms[d.Platform.Architecture] = must(index.Image(d.Digest))(t)
	}
	if len(platforms) != len(programs) {
		t.Errorf("the image has %d platforms, want %d, those of %q", len(platforms), len(programs), programs)
	}
	for _, name := range programs {
		t.Run(name, func(t *testing.T) {
			b, info := packedProgram(t, name, files[name])
			arch := setting(info, "GOARCH")
			image := platforms[arch]
			if image == nil {
				t.Fatal("the release has no image for this platform")
			}
			file := must(image.ConfigFile())(t)
			if diff := cmp.Diff(settings(program{info: info}), file.Config); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
			when := must(time.Parse(time.RFC3339, setting(info, "vcs.time")))(t)
			if !file.Created.Equal(when) || file.Architecture != arch {
				t.Errorf("the image was created at %v for %s, want %v and %s", file.Created, file.Architecture, when, arch)
			}
			layers := must(image.Layers())(t)
			if len(layers) != 1 {
				t.Fatalf("%d layers, want 1", len(layers))
			}
			layer := must(io.ReadAll(must(layers[0].Uncompressed())(t)))(t)
			list, content := unpacked(t, "layer.tar", layer)
			want := []packedFile{
				{"data/", os.ModeDir | 0o700, 65532, when},
				{"etc/", os.ModeDir | 0o755, 0, when},
				{"etc/ssl/", os.ModeDir | 0o755, 0, when},
				{"etc/ssl/certs/", os.ModeDir | 0o755, 0, when},
				{"etc/ssl/certs/ca-certificates.crt", 0o644, 0, when},
				{"hookferry", 0o755, 0, when},
			}
			if diff := cmp.Diff(want, list); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
			if !bytes.Equal(content["hookferry"], b) {
				t.Error("the program in the image is not the one in the archive")
			}
			roots := 0
			for block, rest := pem.Decode(content["etc/ssl/certs/ca-certificates.crt"]); block != nil; block, rest = pem.Decode(rest) {
				roots++
			}
			if roots < 100 {
				t.Errorf("the image has %d certificates, want at least 100", roots)
			}
			if *unpack != "" && runtime.GOOS == "linux" && arch == runtime.GOARCH {
				for _, e := range list {
					to := filepath.Join(*unpack, e.Name)
					if e.Mode.IsDir() {
						if err := os.MkdirAll(to, e.Mode.Perm()); err != nil {
							t.Fatal(err)
						}
					} else if err := os.WriteFile(to, content[e.Name], e.Mode.Perm()); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// TestDockerfileHasTheSettingsOfTheImage shows that the Dockerfile, which makes an image from the
// sources, has the settings of the released image.
func TestDockerfileHasTheSettingsOfTheImage(t *testing.T) {
	text := string(must(os.ReadFile("../../Dockerfile"))(t))
	_, text, _ = strings.Cut(text, "\nFROM scratch\n")
	want := settings(program{info: &debug.BuildInfo{}})
	list := func(words []string) string {
		b := must(json.Marshal(words))(t)
		return strings.ReplaceAll(string(b), ",", ", ")
	}
	for _, line := range []string{
		"USER " + want.User,
		"ENV " + strings.Join(want.Env, " "),
		"VOLUME /data",
		"EXPOSE 8080 8081",
		"STOPSIGNAL " + want.StopSignal,
		fmt.Sprintf("HEALTHCHECK --interval=%v --timeout=%v --start-period=%v CMD %s",
			want.Healthcheck.Interval, want.Healthcheck.Timeout, want.Healthcheck.StartPeriod, list(want.Healthcheck.Test[1:])),
		"ENTRYPOINT " + list(want.Entrypoint),
		"CMD " + list(want.Cmd),
	} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the last stage of the Dockerfile lacks the line %q", line)
		}
	}
}

func TestProgramPrintsItsBuild(t *testing.T) {
	files := madeRelease(t)
	for _, name := range archives(files) {
		b, info := packedProgram(t, name, files[name])
		if setting(info, "GOOS") != runtime.GOOS || setting(info, "GOARCH") != runtime.GOARCH {
			continue // some amd64 kernels run no 386 programs
		}
		file := filepath.Join(t.TempDir(), "hookferry")
		if err := os.WriteFile(file, b, 0o755); err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(must(exec.Command(file, "version", "--json").Output())(t), &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"version": info.Main.Version, "commit": setting(info, "vcs.revision"), "date": setting(info, "vcs.time"),
			"go": info.GoVersion, "os": runtime.GOOS, "arch": runtime.GOARCH,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: version --json (-want +got):\n%s", name, diff)
		}
	}
}

func TestInstallScriptVerifiesTheArchive(t *testing.T) {
	files := madeRelease(t)
	script := must(filepath.Abs(filepath.Join(*made, "install.sh")))(t)
	name := ""
	for _, n := range archives(files) {
		if strings.HasSuffix(n, "_"+runtime.GOOS+"_"+runtime.GOARCH+".tar.gz") {
			name = n
		}
	}
	program, info := packedProgram(t, name, files[name])

	// serve starts a mirror of the release, which flips bits of each archive.
	serve := func(flip byte) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, ok := files[r.URL.Path[1:]]
			if !ok {
				http.NotFound(w, r)
				return
			}
			if b = bytes.Clone(b); strings.HasSuffix(r.URL.Path, ".tar.gz") {
				b[len(b)/2] ^= flip
			}
			w.Write(b)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	good, damaged := serve(0), serve(0x10)
	// beside writes the archive and the checksums to a folder. It flips bits of the archive.
	beside := func(flip byte, sums string) string {
		dir := t.TempDir()
		b := bytes.Clone(files[name])
		b[len(b)/2] ^= flip
		file := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(file, b, 0o644), os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums), 0o644)); err != nil {
			t.Fatal(err)
		}
		return file
	}
	sums := string(files["SHA256SUMS"])
	for _, test := range []struct {
		name string
		args []string
		err  string // error of the script; empty if it succeeds
	}{
		{"download", []string{"-u", good}, ""},
		{"local", []string{beside(0, sums)}, ""},
		{"download with a flipped bit", []string{"-u", damaged}, name + " is damaged, and nothing was installed: "},
		{"local with a flipped bit", []string{beside(1, sums)}, name + " is damaged, and nothing was installed: "},
		{"no checksum", []string{beside(0, "")}, "SHA256SUMS has no checksum of " + name},
		{"no release", []string{"-u", good + "/none"}, "cannot get " + good + "/none/SHA256SUMS"},
		{"no archive", []string{"none.tar.gz"}, "there is no file none.tar.gz"},
		{"wrong option", []string{"-x"}, "usage: install.sh "},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := t.TempDir()
			file := filepath.Join(folder, "hookferry")
			if err := os.WriteFile(file, []byte("the one before"), 0o755); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("sh", append([]string{script, "-d", folder}, test.args...)...).CombinedOutput()
			want := []byte("the one before")
			if test.err == "" {
				want = program
				if err != nil || !strings.HasPrefix(string(out), "hookferry "+info.Main.Version+" ") {
					t.Errorf("the script printed %q, error %v, want the new version", out, err)
				}
			} else if err == nil || !strings.Contains(string(out), "install.sh: "+test.err) {
				t.Errorf("the script printed %q, error %v, want the error %q", out, err, test.err)
			}
			if list := must(os.ReadDir(folder))(t); len(list) != 1 || !bytes.Equal(must(os.ReadFile(file))(t), want) {
				t.Errorf("the folder has %d files, want 1, and the new program if the script succeeds, or else the old one", len(list))
			}
		})
	}
}

func TestNotesAreTheSectionOfTheChangelog(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("analytics.go", "package analytics\n\nconst Version = \"0.2.0\"\n")
	const other = "## [0.1.0] - 2026-01-01\n\n- old\n"
	for _, test := range []struct{ name, changelog, version, want, err string }{
		{"section", "# Changelog\n\n## [0.2.0] - 2026-02-01\n\n### Added\n\n- new\n\n" + other, "v0.2.0", "### Added\n\n- new\n", ""},
		{"last section", "# Changelog\n\n## [0.2.0]\n- new\n\n[0.2.0]: https://example.com\n", "v0.2.0", "- new\n", ""},
		{"other version", "", "v0.1.0", "", "-version v0.1.0 is not Version of analytics.go, which is 0.2.0"},
		{"no section", "# Changelog\n\n" + other, "v0.2.0", "", "CHANGELOG.md has no section [0.2.0]"},
		{"empty section", "# Changelog\n\n## [0.2.0]\n\n" + other, "v0.2.0", "", "CHANGELOG.md has no section [0.2.0]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			write("CHANGELOG.md", test.changelog)
			got, err := notesOf(root, test.version)
			if err == nil {
				err = errors.New("")
			}
			if string(got) != test.want || err.Error() != test.err {
				t.Errorf("notesOf = %q, %v, want %q, %s", got, err, test.want, test.err)
			}
		})
	}
}
