//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Somebody has put a link or a pipe into the data folder, with the name of the write key. It is neither
// read nor waited for.
func TestPlantedWriteKey(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("of somebody else"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, plant := range map[string]func(name string) error{
		"link":          func(name string) error { return os.Symlink(secret, name) },
		"dangling link": func(name string) error { return os.Symlink(secret+"-none", name) },
		"pipe":          func(name string) error { return syscall.Mkfifo(name, 0o600) },
	} {
		data := t.TempDir()
		if err := plant(filepath.Join(data, writeKeyFile)); err != nil {
			t.Fatal(err)
		}
		if key, err := makeWriteKey(data); err == nil || key != "" || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%s: makeWriteKey = %q, %v; want an error that says what to do", what, key, err)
		}
	}
}
