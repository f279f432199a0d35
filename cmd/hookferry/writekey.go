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

// writeKeyFile is the file in the data folder with the write key that serve makes up.
//
// Without --write-key, serve must not accept any key, nor a fixed one: it listens on
// all addresses of the machine unless told otherwise, and browsers let any web page
// send to localhost. The file has a random key, and only its owner can read it; send
// finds the key there.
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

// makeWriteKey returns the key in the data folder, and makes one if there is none. The
// caller holds the lock of the store, so that no other server does the same.
func makeWriteKey(data string) (string, error) {
	key, err := readWriteKey(data)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = rand.Text()
	// The file is renamed once it is whole, so that nobody reads a part of it.
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
