package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
)

// marker occurs once in each event. The collector counts it.
const marker = `"Order Completed"`

// A tally is a collector that does as little as possible, so that the benchmark measures
// the clients: it reads requests, counts events by their marker and answers 200. It
// understands only the HTTP that these clients send.
type tally struct {
	events atomic.Int64
}

// runCollector is the main function of the collector's process. It writes the address of
// the collector to out, as one line. Then it serves until the reader in ends.
func runCollector(in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintln(out, l.Addr())
	var t tally
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go t.serve(c)
		}
	}()
	_, err = io.Copy(io.Discard, in)
	return err // the connections end with the process
}

const (
	taken = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n" + `{"success":true}`

	// maxRequest bounds a request, in bytes, including its head.
	maxRequest = 8 << 20
)

// serve answers the requests of a connection. If it does not understand a request, it
// closes the connection, so that the measurement fails.
func (t *tally) serve(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 64<<10) // grows to the largest request
	n := 0                      // bytes in buf
	for {
		end := -1
		for end < 0 {
			m, err := c.Read(buf[n:])
			if err != nil {
				return
			}
			n += m
			end = bytes.Index(buf[:n], []byte("\r\n\r\n"))
			if end < 0 && n == len(buf) {
				return // the head is too large
			}
		}
		head := buf[:end]
		end += 4
		if bytes.HasPrefix(head, []byte("GET /events")) {
			body := strconv.FormatInt(t.events.Swap(0), 10)
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(body), body)
			return
		}
		size := contentLength(head)
		if size < 0 || end+size > maxRequest {
			return
		}
		if end+size > len(buf) {
			buf = append(buf, make([]byte, end+size-len(buf))...)
		}
		if n < end+size {
			m, err := io.ReadFull(c, buf[n:end+size])
			if err != nil {
				return
			}
			n += m
		}
		t.events.Add(int64(bytes.Count(buf[end:end+size], []byte(marker))))
		if _, err := io.WriteString(c, taken); err != nil {
			return
		}
		n = copy(buf, buf[end+size:n])
		if n > 0 {
			return // not understood: these clients wait for an answer before the next request
		}
	}
}

// contentLength returns -1 for a request without a length.
func contentLength(head []byte) int {
	const name = "\r\nContent-Length: "
	i := bytes.Index(head, []byte(name))
	if i < 0 {
		return -1
	}
	value, _, _ := bytes.Cut(head[i+len(name):], []byte("\r\n"))
	size, err := strconv.Atoi(string(value))
	if err != nil {
		return -1
	}
	return size
}

// startCollector starts the collector's process. stop ends it.
func startCollector() (addr string, stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, "collector")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error {
		in.Close()
		return cmd.Wait()
	}
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("the collector did not start: %w", err)
	}
	return strings.TrimSpace(string(line[:n])), stop, nil
}

// takeEvents returns how many events the collector has received since the previous
// call.
func takeEvents(addr string) (int64, error) {
	resp, err := http.Get("http://" + addr + "/events")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(body), 10, 64)
}
