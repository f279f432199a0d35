package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/flate"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"time"
)

// An entry is a file or, if its name ends in a slash, a folder of an archive.
type entry struct {
	name  string
	mode  int64
	owner int // user and group
	bytes []byte
}

// contents are the files of the archive for a program.
func contents(root string, p program) ([]entry, error) {
	name := "hookferry"
	if p.os == "windows" {
		name += ".exe"
	}
	list := []entry{{name: name, mode: 0o755, bytes: p.bytes}}
	beside := []string{"LICENSE"}
	if p.os == "linux" {
		beside = append(beside, "deploy/systemd/hookferry.service")
	}
	for _, file := range beside {
		b, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		list = append(list, entry{name: filepath.Base(file), mode: 0o644, bytes: b})
	}
	return list, nil
}

// writeTar writes entries to a tar file, in their order.
func writeTar(w io.Writer, list []entry, when time.Time) error {
	t := tar.NewWriter(w)
	for _, e := range list {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: e.mode, Uid: e.owner, Gid: e.owner, Size: int64(len(e.bytes)), ModTime: when}
		if e.name[len(e.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(e.bytes); err != nil {
			return err
		}
	}
	return t.Close()
}

// tarred returns a compressed tar file. The entries are in a folder of the given name.
func tarred(folder string, list []entry, when time.Time) ([]byte, error) {
	below := []entry{{name: folder + "/", mode: 0o755}}
	for _, e := range list {
		e.name = folder + "/" + e.name
		below = append(below, e)
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(writeTar(z, below, when), z.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// zipped returns a zip file with the entries in a folder.
func zipped(folder string, list []entry, when time.Time) ([]byte, error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	for _, e := range list {
		h := &zip.FileHeader{Name: folder + "/" + e.name, Method: zip.Deflate, Modified: when.UTC()}
		h.SetMode(os.FileMode(e.mode))
		w, err := z.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(e.bytes); err != nil {
			return nil, err
		}
	}
	err := z.Close()
	return b.Bytes(), err
}
