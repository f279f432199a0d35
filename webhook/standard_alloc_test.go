//go:build !race

// The race detector makes sync.Pool forget at random, so allocations are
// counted without it.

package webhook

import (
	"bytes"
	"testing"
	"time"

	"github.com/hookferry/analytics/signature"
)

// The one allocation is the text of the values, which net/http takes as a
// string.
func TestStandardHeadersAllocateOnce(t *testing.T) {
	signer, err := signature.NewStandardSigner("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", signature.NewStandardSecret())
	if err != nil {
		t.Fatal(err)
	}
	buf, body, now := make([]byte, 0, 256), bytes.Repeat([]byte("x"), 450), time.Now()
	n := testing.AllocsPerRun(1000, func() {
		_, buf = standardHeaders(buf, signer, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", now, body)
	})
	if n != 1 {
		t.Errorf("standardHeaders allocates %v times, want 1", n)
	}
}
