package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

// A build is the JSON output of version.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Date    string `json:"date,omitempty"` // time of the commit, as RFC 3339 in UTC
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func printVersion(c *command) action {
	c.jsonFlag()
	return func(context.Context) error {
		b := buildOf(debug.ReadBuildInfo())
		commit := ""
		if b.Commit != "" {
			commit = fmt.Sprintf(" (commit %s, %s)", b.Commit[:min(12, len(b.Commit))], b.Date)
		}
		return c.print(b, "hookferry %s%s %s %s/%s", b.Version, commit, b.Go, b.OS, b.Arch)
	}
}

// version returns the version of the module: a tag or a commit, or "devel" if the Go command had none.
func version() string { return buildOf(debug.ReadBuildInfo()).Version }

// buildOf returns the version data of this program, as far as the Go command has recorded it. A
// downloaded module has no commit, but its version identifies the source.
func buildOf(info *debug.BuildInfo, ok bool) build {
	b := build{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Date = s.Value
		}
	}
	return b
}
