package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// answers lists what a peer may send, and how the client must read it.
var answers = []struct {
	name   string
	stream string
	status int    // 0 if err is wanted
	kept   string // the part of the body that the answer keeps
	keep   bool   // whether the connection may be used again
	after  string // Retry-After
	flaw   ProtocolError
	err    error
}{
	{name: "plain", stream: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", status: 200, kept: "ok", keep: true},
	{name: "no text", stream: "HTTP/1.1 204 \r\n\r\n", status: 204, keep: true},
	{name: "no space", stream: "HTTP/1.1 204\r\n\r\n", status: 204, keep: true},
	{name: "bare LF", stream: "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", status: 200, kept: "ok", keep: true},
	{name: "spaces before the status", stream: "HTTP/1.1   200 OK\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
	{name: "unknown status", stream: "HTTP/1.1 799 Odd\r\nContent-Length: 0\r\n\r\n", status: 799, keep: true},
	{name: "later minor version", stream: "HTTP/1.9 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
	{name: "names in any case", stream: "HTTP/1.1 503 No\r\ncontent-LENGTH: 2\r\nRETRY-after:\t 7 \r\n\r\nno", status: 503, kept: "no", keep: true, after: "7"},
	{name: "first Retry-After", stream: "HTTP/1.1 429 No\r\nRetry-After: 7\r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n", status: 429, keep: true, after: "7"},
	{name: "folded value", stream: "HTTP/1.1 503 No\r\nRetry-After: Fri, \r\n 31 Dec\r\n\t1999\r\nContent-Length: 0\r\n\r\n", status: 503, keep: true, after: "Fri, 31 Dec 1999"},
	{name: "folded value of an unused field", stream: "HTTP/1.1 200 OK\r\nX: 1\r\n 2\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
	{name: "204 with a length", stream: "HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\n", status: 204},
	{name: "204 with a length of 0", stream: "HTTP/1.1 204 None\r\nContent-Length: 0\r\n\r\n", status: 204, keep: true},
	{name: "304 has no body", stream: "HTTP/1.1 304 Same\r\nTransfer-Encoding: chunked\r\n\r\n", status: 304},
	{name: "205 may have a body", stream: "HTTP/1.1 205 Reset\r\nContent-Length: 1\r\n\r\nx", status: 205, kept: "x", keep: true},

	{name: "close", stream: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", status: 200, kept: "ok"},
	{name: "close among others", stream: "HTTP/1.1 200 OK\r\nConnection: x, CLOSE ,y\r\nContent-Length: 0\r\n\r\n", status: 200},
	{name: "close in a second field", stream: "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", status: 200},
	{name: "closer is not close", stream: "HTTP/1.1 200 OK\r\nConnection: closer\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
	{name: "HTTP/1.0", stream: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", status: 200, kept: "ok"},
	{name: "HTTP/1.0 keep-alive", stream: "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nok", status: 200, kept: "ok", keep: true},
	{name: "HTTP/1.0 with a coding", stream: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\nok", status: 200, kept: "ok"},
	{name: "body until the connection closes", stream: "HTTP/1.1 500 No\r\n\r\nuntil it closes", status: 500, kept: "until it closes"},

	{name: "chunked", stream: "HTTP/1.1 500 No\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\n00a;x=\"y\"\r\n0123456789\r\n0\r\n\r\n", status: 500, kept: "abc0123456789", keep: true},
	{name: "trailer", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\nContent-Length: 7\r\n\r\n", status: 200, kept: "a", keep: true},
	{name: "chunked and a length", stream: "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", status: 200, kept: "a"},
	{name: "the same length twice", stream: "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", status: 200, kept: "a"},
	{name: "two lengths", stream: "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", status: 200, flaw: errLength},
	{name: "two lengths in one", stream: "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\na", status: 200, flaw: errLength},
	{name: "no length", stream: "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", status: 200, flaw: errLength},
	{name: "signed length", stream: "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na", status: 200, flaw: errLength},
	{name: "length with an underscore", stream: "HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n0123456789", status: 200, flaw: errLength},
	{name: "length above 64 bits", stream: "HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999999\r\n\r\n", status: 200, flaw: errLength},
	{name: "folded length", stream: "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n 0\r\n\r\na", status: 200, flaw: errLength},
	{name: "other coding", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", status: 200, flaw: errCoding},
	{name: "chunked twice", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", status: 200, flaw: errCoding},
	{name: "folded coding", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", status: 200, keep: true},
	{name: "no coding", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n", status: 200, flaw: errCoding},
	{name: "chunked twice in one", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", status: 200, flaw: errCoding},
	{name: "flaw and Retry-After", stream: "HTTP/1.1 503 No\r\nContent-Length: 0, 0\r\nRetry-After: 7\r\n\r\n", status: 503, after: "7", flaw: errLength},
	{name: "flaw and no end", stream: "HTTP/1.1 200 OK\r\nContent-Length: 0, 0\r\n", err: io.ErrUnexpectedEOF},
	{name: "space before the colon", stream: "HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\na", status: 200, flaw: errField},
	{name: "no chunk size", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\na\r\n0\r\n\r\n", status: 200, flaw: errChunk},
	{name: "negative chunk size", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\na\r\n0\r\n\r\n", status: 200, flaw: errChunk},
	{name: "chunk size above 63 bits", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\na", status: 200, flaw: errChunk},
	{name: "chunk without its end", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", status: 200, kept: "a", flaw: errChunk},
	{name: "chunk size with a bare LF", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nb\r\na\r\n0\r\n\r\n", status: 200, flaw: errChunk},
	{name: "bad trailer", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx\r\n\r\n", status: 200, flaw: errField},
	{name: "chunk cut off", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", err: io.ErrUnexpectedEOF},
	{name: "no last chunk", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", err: io.ErrUnexpectedEOF},
	{name: "body cut off", stream: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", err: io.ErrUnexpectedEOF},
	{name: "header cut off", stream: "HTTP/1.1 200 OK\r\nContent-Le", err: io.ErrUnexpectedEOF},
	{name: "nothing", stream: "", err: io.EOF},

	{name: "interim answers", stream: strings.Repeat("HTTP/1.1 103 Early\r\nLink: </x>\r\nContent-Length: 3\r\n\r\n", 100) + "HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
	{name: "interim answers alone", stream: "HTTP/1.1 100 Go on\r\n\r\n", err: io.EOF},
	{name: "interim answers without end", stream: strings.Repeat("HTTP/1.1 103 Early\r\n\r\n", 20_000), err: errLong},
	{name: "interim close", stream: "HTTP/1.1 103 Early\r\nConnection: close\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
	{name: "switch of protocols", stream: "HTTP/1.1 101 Switch\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nwhatever", status: 101},
	{name: "two answers", stream: "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", status: 404},
	{name: "body longer than its length", stream: "HTTP/1.1 404 No\r\nContent-Length: 1\r\n\r\nabc", status: 404, kept: "a"},
	{name: "204 with a body", stream: "HTTP/1.1 204 None\r\n\r\nabc", status: 204},

	{name: "longest header", stream: "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", MaxHeader-41) + "\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
	{name: "too long a header", stream: "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", MaxHeader-40) + "\r\nContent-Length: 0\r\n\r\n", status: 200, flaw: errLong},
	{name: "Retry-After before a long field", stream: "HTTP/1.1 503 No\r\nRetry-After: 7\r\nX: " + strings.Repeat("x", 70<<10) + "\r\n\r\n", status: 503, after: "7", flaw: errLong},
	{name: "70 KB of short fields", stream: "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: 3456789\r\n", 6000) + "Content-Length: 0\r\n\r\n", status: 200, flaw: errLong},
	{name: "long folded field", stream: "HTTP/1.1 200 OK\r\nX: y\r\n" + strings.Repeat(" 3456789\r\n", 7000) + "Content-Length: 0\r\n\r\n", status: 200, flaw: errLong},
	{name: "endless line", stream: "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", maxSkipped), err: errLong},
	{name: "endless status line", stream: "HTTP/1.1 200 " + strings.Repeat("x", maxSkipped), err: errLong},
	{name: "too many chunks", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\na\r\n", 20_000), status: 200, kept: strings.Repeat("a", MaxKept), flaw: errLong},
	{name: "endless trailer", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + strings.Repeat("X: y\r\n", 20_000), status: 200, flaw: errLong},
	{name: "longest body", stream: fmt.Sprintf("HTTP/1.1 400 No\r\nContent-Length: %d\r\n\r\n%s", MaxBody, strings.Repeat("b", MaxBody)), status: 400, kept: strings.Repeat("b", MaxKept), keep: true},
	{name: "too long a body", stream: fmt.Sprintf("HTTP/1.1 400 No\r\nContent-Length: %d\r\n\r\n%s", int64(1)<<40, strings.Repeat("b", MaxBody)), status: 400, kept: strings.Repeat("b", MaxKept)},
	{name: "too long a chunk", stream: "HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n" + strings.Repeat("b", MaxBody), status: 400, kept: strings.Repeat("b", MaxKept)},
	{name: "too long a body until the connection closes", stream: "HTTP/1.1 400 No\r\n\r\n" + strings.Repeat("b", 2*MaxBody), status: 400, kept: strings.Repeat("b", MaxKept)},

	{name: "garbage", stream: "\x00\x01\x02\r\n\r\n", err: errStatus},
	{name: "other protocol", stream: "220 mail.example ESMTP\r\n", err: errStatus},
	{name: "TLS alert", stream: "\x15\x03\x01\x00\x02\x02\x16\r\n", err: errStatus},
	{name: "HTTP/2", stream: "HTTP/2.0 200 OK\r\n\r\n", err: errStatus},
	{name: "HTTP/0.9", stream: "<html>\r\n", err: errStatus},
	{name: "lower case", stream: "http/1.1 200 OK\r\n\r\n", err: errStatus},
	{name: "empty line first", stream: "\r\nHTTP/1.1 200 OK\r\n\r\n", err: errStatus},
	{name: "short status", stream: "HTTP/1.1 20\r\n\r\n", err: errStatus},
	{name: "long status", stream: "HTTP/1.1 2000 OK\r\n\r\n", err: errStatus},
	{name: "status below 100", stream: "HTTP/1.1 099 Odd\r\n\r\n", err: errStatus},
	{name: "signed status", stream: "HTTP/1.1 +20 Odd\r\n\r\n", err: errStatus},
	{name: "fold first", stream: "HTTP/1.1 200 OK\r\n X: y\r\n\r\n", status: 200, flaw: errField},
	{name: "spaces in a name", stream: "HTTP/1.1 200 OK\r\nX Y : z\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
	{name: "space before the colon of a coding", stream: "HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", status: 200, flaw: errField},
	{name: "space before the colon of an unused field", stream: "HTTP/1.1 200 OK\r\nServer : x\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
	{name: "no colon", stream: "HTTP/1.1 200 OK\r\nX\r\n\r\n", status: 200, flaw: errField},
	{name: "no name", stream: "HTTP/1.1 200 OK\r\n: x\r\n\r\n", status: 200, flaw: errField},
	{name: "NUL in a name", stream: "HTTP/1.1 200 OK\r\nX\x00: y\r\n\r\n", status: 200, flaw: errField},
	{name: "NUL in a value", stream: "HTTP/1.1 200 OK\r\nX: y\x00\r\n\r\n", status: 200, flaw: errField},
	{name: "NUL in a folded value", stream: "HTTP/1.1 200 OK\r\nX: y\r\n \x00\r\n\r\n", status: 200, flaw: errField},
	{name: "CR in a value", stream: "HTTP/1.1 200 OK\r\nX: y\rz\r\n\r\n", status: 200, flaw: errField},
	{name: "bytes above ASCII in a value", stream: "HTTP/1.1 200 OK\r\nX: \xff\xc3\xa4\r\nContent-Length: 0\r\n\r\n", status: 200, keep: true},
}

// readAnswer reads an answer from r.
func readAnswer(b *Buffer, r io.Reader) (Answer, bool, error) {
	b.in.begin(r)
	return b.in.answer(b.kept[:0])
}

func TestAnswers(t *testing.T) {
	readers := []struct {
		name string
		of   func(io.Reader) io.Reader
	}{
		{"at once", func(r io.Reader) io.Reader { return r }},
		{"byte by byte", iotest.OneByteReader},
		{"last bytes with io.EOF", iotest.DataErrReader},
	}
	for _, tt := range answers {
		for _, r := range readers {
			t.Run(tt.name+"/"+r.name, func(t *testing.T) {
				var b Buffer
				a, keep, err := readAnswer(&b, r.of(strings.NewReader(tt.stream)))
				if tt.status == 0 {
					if !errors.Is(err, tt.err) || keep {
						t.Errorf("answer() = %+v, %v, %v; want the error %v", a, keep, err, tt.err)
					}
					return
				}
				if err != nil {
					t.Fatalf("answer() = %v, want nil", err)
				}
				type seen struct {
					Status      int
					Kept, After string
					Flaw        ProtocolError
				}
				if diff := cmp.Diff(seen{tt.status, tt.kept, tt.after, tt.flaw}, seen{a.Status, string(a.Kept), a.RetryAfter, a.Flaw}); diff != "" {
					t.Errorf("answer() (-want +got):\n%s", diff)
				}
				// With the other readers, later bytes or the end may not have been read yet. The
				// client checks for them before it uses the connection again.
				if r.name == "at once" && keep != tt.keep {
					t.Errorf("answer() keeps the connection: %v, want %v", keep, tt.keep)
				}
			})
		}
	}
}

// FuzzAnswer compares this package with net/http. Both read an answer that both accept in the same
// way. If net/http closes the connection after an answer, this package does so too.
func FuzzAnswer(f *testing.F) {
	for _, tt := range answers {
		f.Add([]byte(tt.stream), uint16(0))
		f.Add([]byte(tt.stream), uint16(7))
	}
	f.Add([]byte("HTTP/1.0 200 \nRetry-After:\n \n\n"), uint16(51))
	f.Add([]byte("HTTP/1.0 200 \nRetry-After:7\n \n\n"), uint16(36))
	f.Add([]byte("HTTP/1.1 200 OK\r\nRetry-After:\r\nRetry-After: 5\r\n\r\n"), uint16(0))
	request := &http.Request{Method: http.MethodPost}
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16) {
		// The bytes come in two reads.
		at := min(int(cut), len(stream))
		src := io.MultiReader(bytes.NewReader(stream[:at]), bytes.NewReader(stream[at:]))
		var b Buffer
		a, keep, err := readAnswer(&b, src)
		if err != nil {
			if keep {
				t.Fatalf("the connection is kept after the error %v, want it closed", err)
			}
			return
		}
		if len(a.Kept) > MaxKept || a.Status < 101 || a.Status > 999 {
			t.Fatalf("answer %+v, want a status of 101 to 999, and a kept body of at most %d bytes", a, MaxKept)
		}
		br := bufio.NewReader(bytes.NewReader(stream))
		var theirs *http.Response
		for {
			if theirs, err = http.ReadResponse(br, request); err != nil {
				return // net/http also refuses some answers that cannot be misread
			}
			if theirs.StatusCode >= 200 || theirs.StatusCode == 101 {
				break
			}
		}
		if a.Status != theirs.StatusCode {
			t.Fatalf("status %d, net/http has %d", a.Status, theirs.StatusCode)
		}
		if a.Flaw == errLong {
			return // Retry-After may come after the part that is kept
		}
		want := "" // the first value that is not empty
		for _, v := range theirs.Header.Values("Retry-After") {
			if want == "" {
				want = strings.Join(strings.Fields(v), " ") // net/http keeps the spaces of empty folds
			}
		}
		if strings.Join(strings.Fields(a.RetryAfter), " ") != want {
			t.Fatalf("Retry-After %q, net/http has %q", a.RetryAfter, want)
		}
		if a.Flaw != "" {
			if keep {
				t.Fatalf("the connection is kept after the flaw %q, want it closed", a.Flaw)
			}
			return
		}
		if a.Status == 101 {
			return
		}
		body, err := io.ReadAll(io.LimitReader(theirs.Body, MaxBody+1))
		if len(body) > MaxBody {
			if keep {
				t.Fatal("the connection is kept before the end of a long body, want it closed")
			}
			body = body[:MaxBody]
		} else if err != nil {
			return // an error of the trailer, for which net/http has another bound
		}
		if want := body[:min(len(body), MaxKept)]; !bytes.Equal(a.Kept, want) {
			t.Fatalf("body %q, net/http has %q", a.Kept, want)
		}
		left, _ := io.ReadAll(br)
		switch {
		case keep && theirs.Close:
			t.Fatal("the connection is kept, net/http closes it")
		case keep && len(left) > 0 && at == 0 && len(stream) < 4096: // the rest was there
			t.Fatalf("the connection is kept with %q unread, want it closed", left)
		case !keep && !theirs.Close && len(left) == 0 && len(body) < MaxBody && !doubtful(theirs, stream):
			t.Fatal("the connection is closed, net/http keeps it")
		}
	})
}

// doubtful reports whether an answer states its end in two ways. After such an answer net/http
// keeps the connection, and this package closes it.
func doubtful(resp *http.Response, stream []byte) bool {
	lower := bytes.ToLower(stream)
	framings := bytes.Count(lower, []byte("content-length:")) + bytes.Count(lower, []byte("transfer-encoding:"))
	return framings > 1 || framings == 1 && (resp.StatusCode == 204 || resp.StatusCode == 304 || !resp.ProtoAtLeast(1, 1))
}
