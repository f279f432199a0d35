package config

import (
	"crypto/rand"
	_ "embed"
	"strings"
)

//go:embed example.yaml
var example string

// Example returns a configuration file that explains every key. It has a random write key and a
// random secret, so it can be used without changes.
func Example() string {
	return strings.NewReplacer("EXAMPLE-WRITE-KEY", rand.Text(), "EXAMPLE-SECRET", rand.Text()).Replace(example)
}
