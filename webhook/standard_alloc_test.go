//go:build !race

// With the race detector, sync.Pool drops items at random. So allocations are only counted without
// it.

package webhook

import (
	"bytes"
	"testing"
	"time"

	"github.com/hookferry/analytics/signature"
)

func TestStandardHeadersDoNotAllocate(t *testing.T) {
	signer, err := signature.NewStandardSigner("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", signature.NewStandardSecret())
	must(t, err)
	buf, body, now := make([]byte, 0, 512), bytes.Repeat([]byte("x"), 450), time.Now()
	n := testing.AllocsPerRun(1000, func() {
		buf = appendStandard(buf[:0], signer, "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", now, body)
	})
	if n != 0 {
		t.Errorf("appendStandard allocates %v times, want 0", n)
	}
}
