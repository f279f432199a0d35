package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials lists the parts of a program, as CycloneDX: the modules that the go command
// recorded in the program, and the standard library.
func billOfMaterials(p program, when time.Time) ([]byte, error) {
	sum := sha256.Sum256(p.bytes)
	main := component(cyclonedx.ComponentTypeApplication, &p.info.Main)
	main.Name = "hookferry"
	main.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	main.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "MIT"}}}
	list := []cyclonedx.Component{
		component(cyclonedx.ComponentTypeLibrary, &debug.Module{Path: "std", Version: strings.TrimPrefix(p.info.GoVersion, "go")}),
	}
	for _, m := range p.info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		list = append(list, component(cyclonedx.ComponentTypeLibrary, m))
	}
	bom := cyclonedx.NewBOM()
	// The id is a UUID of version 8 (RFC 9562, section 5.8) made from the program's hash, so that the
	// same program has the same id.
	id := sum
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:16])
	bom.Metadata = &cyclonedx.Metadata{Timestamp: when.UTC().Format(time.RFC3339), Component: &main}
	bom.Components = &list
	var b bytes.Buffer
	err := cyclonedx.NewBOMEncoder(&b, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
	return b.Bytes(), err
}

// component describes a module. Like cyclonedx-gomod, it writes Go's checksum of the module as the
// component's hash, although it is the hash of the list of the hashes of the module's files.
func component(kind cyclonedx.ComponentType, m *debug.Module) cyclonedx.Component {
	purl := "pkg:golang/" + strings.ToLower(m.Path)
	if m.Version != "" {
		purl += "@" + url.QueryEscape(m.Version)
	}
	c := cyclonedx.Component{BOMRef: purl, Type: kind, Name: m.Path, Version: m.Version, PackageURL: purl}
	if text, is := strings.CutPrefix(m.Sum, "h1:"); is {
		if sum, err := base64.StdEncoding.DecodeString(text); err == nil {
			c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		}
	}
	return c
}
