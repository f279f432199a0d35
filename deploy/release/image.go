package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const user = 65532 // the id of the image's user, and of its group

// settings returns the settings of the image. The Dockerfile has the same settings; a test
// compares both.
func settings(p program) v1.Config {
	return v1.Config{
		User:         "65532:65532",
		Env:          []string{"HOOKFERRY_DATA=/data"},
		Volumes:      map[string]struct{}{"/data": {}},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8081/tcp": {}},
		StopSignal:   "SIGTERM",
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/hookferry", "health"}, Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 30 * time.Second,
		},
		Entrypoint: []string{"/hookferry"},
		Cmd:        []string{"serve"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "Hookferry",
			"org.opencontainers.image.version":  p.info.Main.Version,
			"org.opencontainers.image.revision": setting(p.info, "vcs.revision"),
			"org.opencontainers.image.created":  setting(p.info, "vcs.time"),
			"org.opencontainers.image.source":   "https://github.com/hookferry/analytics",
			"org.opencontainers.image.licenses": "MIT",
		},
	}
}

// imageOf returns one image with the Linux programs, each for its platform, as a tar file of an OCI
// layout: https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
func imageOf(programs []program, when time.Time) ([]byte, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	version := ""
	for _, p := range programs {
		if p.os != "linux" {
			continue
		}
		version = p.info.Main.Version
		image, err := platformImage(p, when)
		if err != nil {
			return nil, err
		}
		file, err := image.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: file.Platform()}})
	}
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, err
	}
	// podman and skopeo read the first name, and "docker load" reads the second.
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": version,
		"io.containerd.image.name":          "ghcr.io/hookferry/hookferry:" + version,
	}))
	if err != nil {
		return nil, err
	}
	var list []entry
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if e.IsDir() {
			list = append(list, entry{name: name + "/", mode: 0o755})
			return nil
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		list = append(list, entry{name: name, mode: 0o644, bytes: b})
		return err
	})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = writeTar(&b, list, when)
	return b.Bytes(), err
}

// platformImage returns the image for one platform. Its only layer has the program, the
// certificates of authorities, and the folder for the data.
func platformImage(p program, when time.Time) (v1.Image, error) {
	var certificates bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil { // a PEM file cannot express constraints of a root
			if err := pem.Encode(&certificates, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
				return nil, err
			}
		}
	}
	var files bytes.Buffer
	err := writeTar(&files, []entry{
		{name: "data/", mode: 0o700, owner: user},
		{name: "etc/", mode: 0o755},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, bytes: certificates.Bytes()},
		{name: "hookferry", mode: 0o755, bytes: p.bytes},
	}, when)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: when}, CreatedBy: "deploy/release"},
	})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created, file.Config = "linux", p.arch, v1.Time{Time: when}, settings(p)
	if p.arch == "arm" {
		file.Variant = "v7"
	}
	return mutate.ConfigFile(image, file)
}
