package analytics

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"
)

// A gunzipper wraps a collector. It checks that each body is exactly one gzip member,
// decompresses it, and keeps the compressed body.
type gunzipper struct {
	t      *testing.T
	next   *collector
	bodies [][]byte
}

func (g *gunzipper) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	req.Body.Close()
	if err != nil || int64(len(body)) != req.ContentLength || req.Header.Get("Content-Encoding") != "gzip" {
		g.t.Errorf("a body of %d bytes, %v, encoded as %q, want %d and gzip", len(body), err, req.Header.Get("Content-Encoding"), req.ContentLength)
	}
	g.bodies = append(g.bodies, body)
	in := bytes.NewReader(body)
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	plain, err := io.ReadAll(z)
	if err != nil || in.Len() > 0 {
		g.t.Errorf("gzip: %v, with %d bytes after the first member, want none", err, in.Len())
	}
	req.Body = io.NopCloser(bytes.NewReader(plain))
	return g.next.RoundTrip(req)
}

func TestGzippedAttemptsDifferOnlyInSentAt(t *testing.T) {
	for _, spooled := range []bool{false, true} {
		for _, messages := range []int{1, 20, 2000} {
			bubble(t, fmt.Sprintf("spool=%t/messages=%d", spooled, messages), func(t *testing.T) {
				c, col := newTestClient(statusThenOK(3, 503))
				g := &gunzipper{t: t, next: col}
				c.Transport, c.Gzip, c.FlushAt = g, true, messages
				if spooled {
					c.SpoolDir = t.TempDir()
				}
				track(t, c, messages)
				closeClient(t, c)
				checkStats(t, c, uint64(messages), uint64(messages), 0, 0)
				list := col.got()
				if len(list) != 4 {
					t.Fatalf("%d requests, want 4", len(list))
				}
				for i, r := range list {
					if len(r.messages) != messages || r.batch.MessageID != list[0].batch.MessageID {
						t.Errorf("attempt %d has %d messages and the id %s, want %d and %s", i, len(r.messages), r.batch.MessageID, messages, list[0].batch.MessageID)
					}
					if want := FormatTime(r.at); r.batch.SentAt != want {
						t.Errorf("attempt %d: sentAt is %s, want %s", i, r.batch.SentAt, want)
					}
					if messages > 1 && len(g.bodies[i]) > len(r.body)/2 {
						t.Errorf("attempt %d: a body of %d bytes was compressed to %d, want at most half", i, len(r.body), len(g.bodies[i]))
					}
				}
			})
		}
	}
}

// BenchmarkGzip shows that compression runs once per batch, not once per attempt, and takes
// little memory. The messages vary like those of many users of a shop.
func BenchmarkGzip(b *testing.B) {
	text := newBatch(time.Now())
	random := rand.New(rand.NewPCG(1, 2))
	for range 250 {
		p := tenProperties()
		p["order_id"] = fmt.Sprintf("ord_%08x", random.Uint32())
		p["total"] = float64(random.IntN(50_000)) / 100
		p["items"] = 1 + random.IntN(9)
		p["customer"] = random.Int64N(1e8)
		p["express"] = random.IntN(4) == 0
		p["placed"] = time.Date(2026, 3, 4, 5, 6, 0, random.IntN(1e9), time.UTC)
		p["tags"] = []string{[]string{"spring", "summer", "autumn"}[random.IntN(3)], fmt.Sprint("campaign-", random.IntN(40))}
		p["shipping"] = map[string]any{"city": fmt.Sprintf("city %x", random.IntN(5000)), "zip": fmt.Sprint(1000 + random.IntN(9000))}
		m := Track{
			UserId:     fmt.Sprint("u-", random.IntN(100_000)),
			Event:      []string{"Order Completed", "Product Viewed", "Cart Updated"}[random.IntN(3)],
			Properties: p,
		}
		message, err := m.AppendJSON(nil)
		if err != nil {
			b.Fatal(err)
		}
		text.append(message, 0)
	}
	var p packer
	b.SetBytes(int64(text.size))
	b.ReportAllocs()
	for b.Loop() {
		if err := text.pack(&p); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(text.packed.data))/float64(text.size), "x_size")
}
