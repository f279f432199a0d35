//go:build !race && unix

// The race detector allocates, and so do sockets without RawConn.Read.

package wire

import (
	"testing"
	"time"
)

// A request on a kept connection makes no garbage.
func TestPostDoesNotAllocate(t *testing.T) {
	addr := serve(t, answerAll)
	c := socketClient(t)
	to := target(t, "http://"+addr+"/")
	body := make([]byte, 450)
	lines := []byte("X-Signature: 0123456789\r\n")
	var b Buffer
	post := func() {
		if a, err := c.Post(c.config.Context, time.Now().Add(long), to, lines, body, &b); err != nil || a.Status != 200 {
			t.Fatalf("Post = %+v, %v", a, err)
		}
	}
	post()
	if n := testing.AllocsPerRun(200, post); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
