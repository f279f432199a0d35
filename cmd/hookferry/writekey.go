package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// writeKeyFile is the file in the data folder with the write key that serve generates, and send reads.
//
// Without --write-key, serve must neither accept every key nor use a fixed one: by default it
// listens on all addresses of the machine, and browsers let any web page send requests to
// localhost. So the key is random, and only the owner of the file can read it.
const writeKeyFile = "write-key"

// readWriteKey returns the write key in the data folder. If there is none, the error wraps
// fs.ErrNotExist.
func readWriteKey(data string) (string, error) {
	name := filepath.Join(data, writeKeyFile)
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file; somebody else may have put it there; remove it", name)
	}
	f, err := os.OpenInRoot(data, writeKeyFile) // does not follow a link out of the folder
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(b))
	if key == "" {
		return "", fmt.Errorf("%s is empty: %w", name, fs.ErrNotExist)
	}
	return key, nil
}

// makeWriteKey returns the write key in the data folder, and creates one if there is none. The
// caller holds the lock of the store, so no other server creates one at the same time.
func makeWriteKey(data string) (string, error) {
	key, err := readWriteKey(data)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = rand.Text()
	// The file gets its final name only when it is complete, so nobody can read a part of the key.
	f, err := os.CreateTemp(data, writeKeyFile+"-*") // with mode 0600
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(key + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(data, writeKeyFile))
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return key, nil
}
