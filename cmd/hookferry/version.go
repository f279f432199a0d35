package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
)

const versionHelp = `Version prints the version, that of Go, and the system it was built for.

Examples:
  hookferry version
`

// A build is what version --json prints.
type build struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func printVersion(o *options) action {
	asJSON := jsonFlag(o)
	o.noVariables()
	return func(_ context.Context, _ []string, p process) error {
		if *asJSON {
			return printJSON(p.stdout, build{version(), runtime.Version(), runtime.GOOS, runtime.GOARCH})
		}
		_, err := fmt.Fprintf(p.stdout, "hookferry %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	}
}

// version is that of the module when built by go install, and otherwise the
// commit it was built from, as far as the binary knows.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	revision, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+modified"
		}
	}
	if revision == "" {
		return "devel"
	}
	return "devel-" + revision[:min(12, len(revision))] + modified
}
