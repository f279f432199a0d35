package config

import (
	"crypto/rand"
	_ "embed"
	"strings"
)

//go:embed example.yaml
var example string

// Example returns a file that explains every key, with a write key and a secret
// of its own, so that it may be used as it is.
func Example() string {
	return strings.NewReplacer("EXAMPLE-WRITE-KEY", rand.Text(), "EXAMPLE-SECRET", rand.Text()).Replace(example)
}
