package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// writeKeyFile is where serve keeps the write key it made up, in the data
// folder.
//
// Without --write-key neither "any key is good" nor a fixed key would do: serve
// listens on all of the machine's addresses unless told otherwise, and
// browsers let any web page send to localhost. A random key in a file that
// only its owner reads lets send, which looks there, in, and nobody else.
const writeKeyFile = "write-key"

// readWriteKey returns the key in the data folder. The error wraps
// fs.ErrNotExist if there is none.
func readWriteKey(data string) (string, error) {
	b, err := os.ReadFile(filepath.Join(data, writeKeyFile))
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(b))
	if key == "" {
		return "", fmt.Errorf("%s is empty: %w", filepath.Join(data, writeKeyFile), fs.ErrNotExist)
	}
	return key, nil
}

// makeWriteKey returns the key in the data folder, which it makes up first if
// there is none. The caller holds the lock of the data file, so that no other
// server does the same.
func makeWriteKey(data string) (string, error) {
	key, err := readWriteKey(data)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = rand.Text()
	// By way of another name, so that the file is whole whenever it is there.
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
