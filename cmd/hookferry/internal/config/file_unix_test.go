//go:build unix

package config

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestLoadRefusesIrregularFiles reads settings and secrets from pipes, devices and folders. A read
// of a pipe could wait forever, and a read of a device might never end.
func TestLoadRefusesIrregularFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	linked := filepath.Join(dir, "linked")
	if err := os.Symlink("pipe", linked); err != nil {
		t.Fatal(err)
	}
	const want = "it is not a regular file"
	for _, path := range []string{pipe, linked, "/dev/zero", dir} {
		if _, err := Load(path, env(nil), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%s): %v, want %q", path, err, want)
		}
		for _, text := range []string{
			strings.Replace(minimal, "k1", `"file:`+path+`"`, 1),
			"tls: {certificate: '" + path + "', key: '" + path + "'}" + minimal,
		} {
			if _, err := Load(write(t, text), env(nil), nil); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Load of a file that names %s: %v, want %q", path, err, want)
			}
		}
		if _, err := ReadSecret("file:" + path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("ReadSecret(file:%s): %v, want the path and %q", path, err, want)
		}
	}
}
