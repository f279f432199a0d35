package main

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBuild(t *testing.T) {
	commit := []debug.BuildSetting{
		{Key: "vcs", Value: "git"},
		{Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"},
		{Key: "vcs.time", Value: "2026-11-23T11:43:22Z"},
	}
	for _, test := range []struct {
		name, version string
		vcs           []debug.BuildSetting
		want          build
	}{
		{"release", "v0.1.0", commit, build{Version: "v0.1.0", Commit: commit[1].Value, Date: commit[2].Value}},
		{"commit of a clone", "v0.1.1-0.20261123114322-0123456789ab+dirty", commit,
			build{Version: "v0.1.1-0.20261123114322-0123456789ab+dirty", Commit: commit[1].Value, Date: commit[2].Value}},
		{"go install of a release", "v0.1.0", nil, build{Version: "v0.1.0"}},
		{"go install of a release candidate", "v0.1.0-rc.1-x", nil, build{Version: "v0.1.0-rc.1-x"}},
		{"go install of a commit", "v0.1.1-0.20261123114322-0123456789ab", nil, build{Version: "v0.1.1-0.20261123114322-0123456789ab"}},
		{"without git", "(devel)", nil, build{Version: "devel"}},
		{"a test", "", nil, build{Version: "devel"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			info := &debug.BuildInfo{Main: debug.Module{Version: test.version}, Settings: test.vcs}
			test.want.Go, test.want.OS, test.want.Arch = runtime.Version(), runtime.GOOS, runtime.GOARCH
			if diff := cmp.Diff(test.want, buildOf(info, true)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff(build{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}, buildOf(nil, false)); diff != "" {
		t.Errorf("without information (-want +got):\n%s", diff)
	}
}
