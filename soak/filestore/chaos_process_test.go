package filestore_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"go.uber.org/goleak"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/store"
)

// The settings of the forwarders. The times are short, so that deliveries become dead letters.
const (
	chaosTimeout  = time.Second
	chaosWindow   = 8 * time.Second
	chaosInFlight = 256
	chaosDedup    = 50_000
	chaosSecret   = "s3cret"
)

// chaosLaunch is the header with the number of the launch that sent a webhook.
const chaosLaunch = "X-Launch"

type chaosConfig struct {
	Dir          string
	Launch       int
	Destinations []chaosDestination
	Root         []byte // DER of the authority of the receivers' certificate
}

// A chaosDestination has the settings of a webhook.Destination that the processes get. The others
// cannot be written as JSON.
type chaosDestination struct {
	ID        string
	Endpoints []webhook.Endpoint
	Disabled  bool
}

type chaosBatch struct {
	Destination string
	IDs         []uint32
	Sizes       []int // about how large each call is, in bytes
}

type chaosStatus struct {
	Heap       uint64 // after a garbage collection
	Goroutines int
	Files      int // open files; -1 if their number is unknown
	Counts     store.Counts
	Stats      webhook.Stats
}

type chaosDead struct {
	Ref    webhook.Ref
	ID     string
	Reason webhook.Reason
}

// chaosChild is a process of TestChaos: a program that embeds a forwarder. It obeys requests over
// HTTP until its standard input ends or it is killed. First it prints its URL. Then it prints "f",
// the id of a delivery and a reason before it stores a failed attempt, and "d", the id and a word
// after it has stored that a delivery is done.
func chaosChild(settings []byte) error {
	var c chaosConfig
	if err := json.Unmarshal(settings, &c); err != nil {
		return err
	}
	root, err := x509.ParseCertificate(c.Root)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	var destinations []webhook.Destination
	for _, d := range c.Destinations {
		destinations = append(destinations, webhook.Destination{ID: d.ID, Endpoints: d.Endpoints, Disabled: d.Disabled, Secret: chaosSecret})
	}
	store, err := openStore(c.Dir, filequeue.Config{DedupMax: chaosDedup})
	if err != nil {
		return err
	}
	f, err := webhook.New(webhook.Config{
		Store: &chaosStore{Store: store, began: time.Now()}, Destinations: destinations, Timeout: chaosTimeout, Window: chaosWindow, MaxInFlight: chaosInFlight,
		TLSClientConfig: &tls.Config{RootCAs: roots}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	run, serve := make(chan error, 1), make(chan error, 1)
	server := &http.Server{Handler: chaosControl(f, store)}
	fmt.Println("http://" + listener.Addr().String())  // before the line of an attempt
	go func() { run <- f.Run(context.Background()) }() // both end below
	go func() { serve <- server.Serve(listener) }()

	io.Copy(io.Discard, os.Stdin)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return fmt.Errorf("stopping the server: %w", err)
	}
	if err := f.Shutdown(ctx); err != nil {
		return fmt.Errorf("Shutdown: %w", err)
	}
	if err := <-run; err != nil {
		return fmt.Errorf("Run: %w", err)
	}
	if err := <-serve; err != http.ErrServerClosed {
		return err
	}
	if err := store.Close(); err != nil {
		return err
	}
	if _, err := checkStore(c.Dir); err != nil {
		return err
	}
	return goleak.Find()
}

// A chaosStore prints the settlements that it gets; see chaosChild.
type chaosStore struct {
	*filequeue.Store
	began time.Time
}

func (s *chaosStore) Settle(ctx context.Context, ss []store.Settlement) (int, error) {
	var failed, done bytes.Buffer
	for i := range ss {
		d := &ss[i].Delivery
		if n := len(d.Attempts); ss[i].Verdict != store.Done && n > 0 && d.Attempts[n-1].At.After(s.began) {
			fmt.Fprintln(&failed, "f", d.ID, d.Attempts[n-1].Reason)
		}
	}
	os.Stdout.Write(failed.Bytes())
	n, err := s.Store.Settle(ctx, ss)
	for i := range ss[:n] {
		if ss[i].Verdict == store.Done {
			fmt.Fprintln(&done, "d", ss[i].Delivery.ID, "stored")
		}
	}
	os.Stdout.Write(done.Bytes())
	return n, err
}

// chaosControl returns the handler of the requests by which the test controls the process.
func chaosControl(f *webhook.Forwarder, store *filequeue.Store) http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, answer func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := answer(r)
			if err != nil {
				http.Error(w, err.Error(), 500)
				return
			}
			json.NewEncoder(w).Encode(v)
		})
	}
	handle("POST /forward", func(r *http.Request) (any, error) {
		var b chaosBatch
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			return nil, err
		}
		var calls []event.Call
		for i, id := range b.IDs {
			calls = append(calls, &analytics.Track{
				MessageId: strconv.FormatUint(uint64(id), 10), UserId: "u-2041", Event: "Soaked",
				Properties: map[string]any{"note": strings.Repeat("<é>", b.Sizes[i]/4)},
			})
		}
		return true, f.Forward(r.Context(), b.Destination, calls...)
	})
	handle("GET /status", func(r *http.Request) (any, error) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s := chaosStatus{Heap: m.HeapAlloc, Goroutines: runtime.NumGoroutine(), Files: -1, Stats: f.Stats()}
		if list, err := os.ReadDir("/dev/fd"); err == nil {
			s.Files = len(list)
		}
		var err error
		s.Counts, err = store.Count(r.Context())
		return s, err
	})
	handle("GET /dead", func(r *http.Request) (any, error) {
		max, err := strconv.Atoi(r.FormValue("max"))
		if err != nil {
			return nil, err
		}
		list := []chaosDead{}
		for d, err := range f.Deliveries(r.Context(), webhook.Query{States: []webhook.State{webhook.StateDead}}) {
			if err != nil {
				return nil, err
			}
			if list = append(list, chaosDead{d.Ref(), d.ID, d.Reason}); len(list) == max {
				break
			}
		}
		return list, nil
	})
	refs := func(do func(context.Context, ...webhook.Ref) (webhook.Progress, error)) func(r *http.Request) (any, error) {
		return func(r *http.Request) (any, error) {
			var refs []webhook.Ref
			if err := json.NewDecoder(r.Body).Decode(&refs); err != nil {
				return nil, err
			}
			p, err := do(r.Context(), refs...)
			return p.Changed, err
		}
	}
	handle("POST /retry", refs(f.Retry))
	handle("POST /discard", refs(f.Discard))
	return mux
}

// A chaosProcess is one launch of the process, as the test sees it.
type chaosProcess struct {
	cmd    *exec.Cmd
	in     io.Closer
	url    string
	client *http.Client
	read   chan struct{} // closed when all its output has been read
}

// startChaos launches the process, and calls hear with each line that it prints after its URL.
func startChaos(c chaosConfig, hear func(line string)) (*chaosProcess, error) {
	p := &chaosProcess{cmd: command("chaos", c), client: &http.Client{Transport: &http.Transport{}}, read: make(chan struct{})}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	if lines.Scan() {
		p.url = lines.Text()
	}
	go func() { // ends with the process; wait waits for it
		defer close(p.read)
		for lines.Scan() {
			hear(lines.Text())
		}
	}()
	if !strings.HasPrefix(p.url, "http://") {
		p.kill()
		return nil, fmt.Errorf("launch %d did not start: %v", c.Launch, p.cmd.ProcessState)
	}
	return p, nil
}

// kill ends the process with SIGKILL.
func (p *chaosProcess) kill() {
	p.cmd.Process.Kill()
	p.wait()
}

// stop asks the process to end, and waits for it.
func (p *chaosProcess) stop() error {
	p.client.CloseIdleConnections()
	p.in.Close()
	return p.wait()
}

func (p *chaosProcess) wait() error {
	<-p.read // Wait closes the pipe, so all output must have been read
	err := p.cmd.Wait()
	p.in.Close()
	p.client.CloseIdleConnections()
	return err
}

// errRefused is the error for an answer of the process other than 200.
type errRefused string

func (e errRefused) Error() string { return string(e) }

// ask makes a request, and decodes the answer into answer.
func (p *chaosProcess) ask(method, path string, body, answer any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, p.url+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return errRefused(fmt.Sprintf("%s: %s: %s", path, resp.Status, text))
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}
