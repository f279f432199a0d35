//go:build !race

// The race detector makes sync.Pool drop some of its objects at random. So allocations are only
// counted without it.

package signature_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/hookferry/analytics/signature"
)

func TestAppendDoesNotAllocate(t *testing.T) {
	signer, err := signature.NewSigner("secret")
	if err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("x"), 450)
	dst := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(1000, func() { dst = signer.Append(dst[:0], body) }); n != 0 {
		t.Errorf("Append allocates %v times, want 0", n)
	}
}

func TestStandardAppendDoesNotAllocate(t *testing.T) {
	signer, err := signature.NewStandardSigner(specSecret, signature.NewStandardSecret())
	if err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("x"), 450)
	dst := make([]byte, 0, 128)
	at := time.Now()
	if n := testing.AllocsPerRun(1000, func() { dst = signer.Append(dst[:0], specID, at, body) }); n != 0 {
		t.Errorf("Append allocates %v times, want 0", n)
	}
}
