// Command release makes the files of a release of hookferry from the checked-out commit.
//
//	GOWORK=off go -C deploy/release run . -version v0.1.0 -out dist [OS/ARCH...]
//
// The commit must have the tag cmd/hookferry/v0.1.0. The constant Version in analytics.go must be
// the same version, and CHANGELOG.md must have a section for it. The command then builds the
// programs from the published modules, as "go install" does. Without -version, the run is a
// trial: the command builds the programs from the workspace, whatever the commit is.
//
// For each system the command writes an archive, and a list of the modules in its program
// (CycloneDX). For all Linux systems together it writes one image, as an OCI layout in a tar file.
// It adds the install script, the checksums of all files (SHA256SUMS) and, with -version, the
// release notes (NOTES.md). The same commit and the same Go release give the same bytes, because
// each time in the files is the time of the commit.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// systems are the systems that a release has programs for.
var systems = []string{
	"linux/amd64", "linux/arm64", "linux/arm", "linux/386", "darwin/amd64", "darwin/arm64",
	"windows/amd64", "windows/arm64", "freebsd/amd64",
}

// A program is a build of the command for one system.
type program struct {
	os, arch string
	bytes    []byte
	info     *debug.BuildInfo
}

func main() {
	version := flag.String("version", "", "`version` to release, such as v0.1.0; without it: a try-out")
	out := flag.String("out", "", "`folder` for the files, in the repository unless absolute; has to be empty or missing")
	flag.Parse()
	if *out == "" {
		fmt.Fprintln(os.Stderr, "release: -out is missing")
		os.Exit(2)
	}
	wanted := flag.Args()
	if len(wanted) == 0 {
		wanted = systems
	}
	if err := release(filepath.Join("..", ".."), *version, *out, wanted); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release makes the files for the systems from the repository at root.
func release(root, version, out string, systems []string) error {
	files := map[string][]byte{} // by name
	if version != "" {
		notes, err := notesOf(root, version)
		if err != nil {
			return err
		}
		files["NOTES.md"] = notes
	}
	if !filepath.IsAbs(out) {
		out = filepath.Join(root, out)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if there, err := os.ReadDir(out); err != nil {
		return err
	} else if len(there) > 0 {
		return fmt.Errorf("-out %s is not empty: it has %d files", out, len(there))
	}

	var programs []program
	for _, system := range systems {
		p, err := build(root, system, version != "")
		if err != nil {
			return err
		}
		if stamped := p.info.Main.Version; version != "" && stamped != version {
			return fmt.Errorf("the programs of this commit have the version %s, not %s: commit or undo all changes in the tree, and tag the commit cmd/hookferry/%[2]s", stamped, version)
		}
		programs = append(programs, p)
	}
	when, err := time.Parse(time.RFC3339, setting(programs[0].info, "vcs.time"))
	if err != nil {
		return fmt.Errorf("go recorded no commit in the program: make releases in a clone, not in an additional worktree of it")
	}
	stem := "hookferry_" + programs[0].info.Main.Version
	for _, p := range programs {
		name := stem + "_" + p.os + "_" + p.arch
		content, err := contents(root, p)
		if err != nil {
			return err
		}
		if p.os == "windows" {
			files[name+".zip"], err = zipped(name, content, when)
		} else {
			files[name+".tar.gz"], err = tarred(name, content, when)
		}
		if err != nil {
			return err
		}
		if files[name+".cdx.json"], err = billOfMaterials(p, when); err != nil {
			return err
		}
	}
	if files[stem+"_image.tar"], err = imageOf(programs, when); err != nil {
		return err
	}
	if files["install.sh"], err = os.ReadFile(filepath.Join(root, "deploy", "install.sh")); err != nil {
		return err
	}
	var sums bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name != "NOTES.md" { // the notes are shown on the release's page and not downloaded
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(files[name]), name)
		}
	}
	files["SHA256SUMS"] = sums.Bytes()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(out, name), files[name], 0o644); err != nil {
			return err
		}
		fmt.Printf("%9d %s\n", len(files[name]), name)
	}
	return nil
}

// notesOf returns the section of the changelog for a version. It returns an error if the constant
// Version in analytics.go is another version, or if the changelog has no such section.
func notesOf(root, version string) ([]byte, error) {
	source, err := os.ReadFile(filepath.Join(root, "analytics.go"))
	if err != nil {
		return nil, err
	}
	constant := regexp.MustCompile(`(?m)^const Version = "(.*)"$`).FindSubmatch(source)
	if constant == nil {
		return nil, fmt.Errorf("analytics.go has no line with the constant Version")
	}
	if "v"+string(constant[1]) != version {
		return nil, fmt.Errorf("-version %s is not Version of analytics.go, which is %s", version, constant[1])
	}
	changelog, err := os.ReadFile(filepath.Join(root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	_, section, _ := strings.Cut(string(changelog), "\n## ["+version[1:]+"]")
	_, section, _ = strings.Cut(section, "\n") // after the date
	section, _, _ = strings.Cut(section, "\n## ")
	section, _, _ = strings.Cut(section, "\n[") // links, at the end of the file
	if section = strings.TrimSpace(section); section == "" {
		return nil, fmt.Errorf("CHANGELOG.md has no section [%s]", version[1:])
	}
	return []byte(section + "\n"), nil
}

// build builds the program for a system, from the published modules or from the workspace.
func build(root, system string, published bool) (program, error) {
	var p program
	p.os, p.arch, _ = strings.Cut(system, "/")
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return p, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "hookferry")
	work := "off"
	if !published {
		if work, err = filepath.Abs(filepath.Join(root, "go.work")); err != nil {
			return p, err
		}
	}
	// The tag grpcnotrace keeps the program small. Without it, gRPC's tracing links code that keeps
	// the linker from removing unused methods.
	cmd := exec.Command("go", "build", "-buildvcs=true", "-trimpath", "-tags=grpcnotrace", "-ldflags=-s -w", "-o", file, ".")
	cmd.Dir = filepath.Join(root, "cmd", "hookferry")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch, "GOARM=7", "GOWORK="+work)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return p, fmt.Errorf("%s: go build: %w", system, err)
	}
	if p.bytes, err = os.ReadFile(file); err != nil {
		return p, err
	}
	p.info, err = buildinfo.Read(bytes.NewReader(p.bytes))
	return p, err
}

// setting returns the build setting with this key, which the go command recorded in the
// program, or "" if there is none.
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
