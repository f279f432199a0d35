package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/internal/memnet"
	"github.com/hookferry/analytics/signature"
)

// A world has the network and the folder that the servers of a test use.
type world struct {
	*testing.T
	dir    string
	listen func(ctx context.Context, network, address string) (net.Listener, error)
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	from   func(ctx context.Context, ip net.IP, address string) (net.Conn, error)
	client *http.Client
}

// bubble runs a test in a synctest bubble with a network in memory.
func bubble(t *testing.T, test func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		w := &world{T: t, dir: t.TempDir(), listen: n.Listen, dial: n.DialContext, from: n.DialFrom}
		w.client = w.trusting(nil)
		test(t, w)
	})
}

// onSystemNetwork returns a world with the network and the clock of the system.
func onSystemNetwork(t *testing.T) *world {
	w := &world{T: t, dir: t.TempDir(), listen: new(net.ListenConfig).Listen}
	w.client = w.trusting(nil)
	return w
}

// afterADay returns a channel that ends a wait for something that should happen earlier. In a
// bubble the day passes at once. Elsewhere the time limit of the test comes first.
func afterADay() <-chan time.Time { return time.After(24 * time.Hour) }

// trusting returns a client that trusts a certificate, which may be nil.
func (w *world) trusting(c *x509.Certificate) *http.Client {
	transport := &http.Transport{DialContext: w.dial, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: x509.NewCertPool()}}
	if c != nil {
		transport.TLSClientConfig.RootCAs.AddCert(c)
	}
	w.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A running server is a server under test, with its log.
type running struct {
	*world
	env    map[string]string
	reload chan os.Signal
	cancel context.CancelFunc
	ended  chan error

	mu   sync.Mutex
	log  bytes.Buffer
	more chan struct{} // closed when the log grows
}

// start starts a server with a configuration file, to which it adds listen, admin and data. It
// waits until the server listens.
func (w *world) start(file string) *running {
	w.Helper()
	s := w.prepare(file, nil)
	s.begin()
	s.await(`msg=listening`)
	return s
}

func (w *world) prepare(file string, env map[string]string) *running {
	w.Helper()
	s := &running{world: w, env: env, reload: make(chan os.Signal), ended: make(chan error, 1), more: make(chan struct{})}
	s.write(file)
	return s
}

// write replaces the configuration file in one step.
func (s *running) write(file string) {
	s.Helper()
	if !strings.Contains(file, "\nadmin:") {
		file += "\nadmin: {listen: 127.0.0.1:0}\n"
	}
	s.replace("hookferry.yaml", "listen: 127.0.0.1:0\ndata: data\n"+file)
}

// replace writes a file in one step, by a rename.
func (w *world) replace(name, text string) {
	w.Helper()
	if err := os.WriteFile(w.path(name+".new"), []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
	if err := os.Rename(w.path(name+".new"), w.path(name)); err != nil {
		w.Fatal(err)
	}
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (s *running) load() (*config.Settings, error) {
	return config.Load(s.path("hookferry.yaml"), func(name string) string { return s.env[name] }, nil)
}

func (s *running) begin() {
	s.Helper()
	settings, err := s.load()
	if err != nil {
		s.Fatal(err)
	}
	level := new(slog.LevelVar)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { // the cleanup waits for the end of Run
		s.ended <- Run(ctx, Options{
			Settings: settings, Load: s.load, Reload: s.reload,
			Level: level, Logger: slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: level})),
			Getenv: func(name string) string { return s.env[name] }, Version: "v1.2.3",
			Listen: s.listen, Dial: s.dial, LogLinesLeftOut: func() uint64 { return 0 },
		})
	}()
	s.Cleanup(func() { s.stop() })
}

// stop stops the server and returns the error of Run. It may be called again.
func (s *running) stop() error {
	s.cancel()
	err := <-s.ended
	s.ended <- err
	return err
}

// Write appends to the log.
func (s *running) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.more)
	s.more = make(chan struct{})
	return s.log.Write(b)
}

func (s *running) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// await waits until the log matches a pattern, and returns the last group of the match.
func (s *running) await(pattern string) string {
	s.Helper()
	re := regexp.MustCompile(pattern)
	timeout := afterADay()
	for {
		s.mu.Lock()
		text, more := s.log.String(), s.more
		s.mu.Unlock()
		if m := re.FindStringSubmatch(text); m != nil {
			return m[len(m)-1]
		}
		select {
		case <-more:
		case err := <-s.ended:
			s.ended <- err
			s.Fatalf("Run ended with %v before the log matched %s:\n%s", err, pattern, s.text())
		case <-timeout:
			s.Fatalf("the log does not match %s:\n%s", pattern, text)
		}
	}
}

func (s *running) public() string { return s.await(`msg=listening address=(\S+)`) }

// admin returns the URL of the admin listener, without a slash at its end.
func (s *running) admin() string {
	return strings.TrimSuffix(s.await(`msg="the page is at" url=(\S+)`), "/")
}

// call sends a call and returns the status of the answer.
func (s *running) call(key, event string) int {
	s.Helper()
	return s.callBy(s.client, "http://"+s.public(), key, event)
}

func (s *running) callBy(client *http.Client, base, key, event string) int {
	s.Helper()
	r, err := http.NewRequest("POST", base+"/v1/track", strings.NewReader(`{"event":"`+event+`","userId":"u","messageId":"`+event+`"}`))
	if err != nil {
		s.Fatal(err)
	}
	r.SetBasicAuth(key, "")
	status, _ := s.do(client, r)
	return status
}

func (w *world) do(client *http.Client, r *http.Request) (int, string) {
	w.Helper()
	resp, err := client.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (w *world) request(method, url string) (int, string) {
	w.Helper()
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		w.Fatal(err)
	}
	return w.do(w.client, r)
}

// read gets an answer of the admin API and decodes it.
func (s *running) read(path string, to any) {
	s.Helper()
	status, text := s.request("GET", s.admin()+path)
	if status != 200 {
		s.Fatalf("GET %s: status %d, want 200: %s", path, status, text)
	}
	if err := json.Unmarshal([]byte(text), to); err != nil {
		s.Fatalf("GET %s: %v", path, err)
	}
}

// A sink is a receiver of webhooks that reports the names of the events.
type sink struct {
	t       *testing.T
	url     string
	arrived chan string
}

func (w *world) sink() *sink {
	s := &sink{t: w.T, arrived: make(chan string, 1000)}
	s.url = w.receiver(func(_ http.ResponseWriter, r *http.Request) {
		var m struct{ Event string }
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			w.Error(err)
		}
		s.arrived <- m.Event
	})
	return s
}

// receiver starts a receiver of webhooks, which serves until the test ends.
func (w *world) receiver(handle http.HandlerFunc) (url string) {
	w.Helper()
	return w.serve(&http.Server{Handler: handle}).URL
}

func (w *world) serve(h *http.Server) *httptest.Server {
	w.Helper()
	server := &httptest.Server{Config: h}
	var err error
	if server.Listener, err = w.listen(w.Context(), "tcp", "127.0.0.1:0"); err != nil {
		w.Fatal(err)
	}
	server.Start()
	w.Cleanup(server.Close)
	return server
}

func (s *sink) want(event string) {
	s.t.Helper()
	select {
	case got := <-s.arrived:
		if got != event {
			s.t.Fatalf("the event %q arrived, want %q", got, event)
		}
	case <-afterADay():
		s.t.Fatalf("the event %q did not arrive", event)
	}
}

// certificate writes a certificate and its key to files, and returns the certificate.
func (w *world) certificate(name string, serial int64) *x509.Certificate {
	w.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		w.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		w.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + "-key.pem": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(w.path(file), pem.EncodeToMemory(block), 0o600); err != nil {
			w.Fatal(err)
		}
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func TestServerServesBothListeners(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		receiver := w.sink()
		s := w.start(fmt.Sprintf(`
sources: [{name: web, keys: [k1], destinations: [crm]}]
destinations: [{id: crm, endpoints: [{url: %q}]}]
log: {access: 1}
`, receiver.url))
		if status := s.call("k1", "One"); status != 200 {
			t.Fatalf("a call got the status %d, want 200", status)
		}
		receiver.want("One")
		if status := s.call("other", "Two"); status != 401 {
			t.Errorf("a call with another key got the status %d, want 401", status)
		}
		for _, at := range []string{"http://" + s.public(), s.admin()} {
			for _, path := range []string{"/healthz", "/readyz"} {
				if status, text := s.request("GET", at+path); status != 200 || text != "ok\n" {
					t.Errorf("GET %s%s: status %d, %q, want 200 and ok", at, path, status, text)
				}
			}
		}
		if status, _ := s.request("GET", s.admin()+"/"); status != 200 {
			t.Errorf("GET of the page: status %d, want 200", status)
		}
		status, text := s.request("GET", s.admin()+"/metrics")
		if status != 200 || !strings.Contains(text, `hookferry_calls_accepted_total{source="web"} 1`) || !strings.Contains(text, `hookferry_http_requests_total{code="401"} 1`) {
			t.Errorf("GET /metrics: status %d, want 200, an accepted call and an answer 401:\n%s", status, text)
		}
		if status, _ := s.request("GET", s.admin()+"/debug/pprof/goroutine?debug=1"); status != 200 {
			t.Errorf("GET of a profile: status %d, want 200", status)
		}
		if status, _ := s.request("GET", s.admin()+"/debug/pprof/cmdline"); status != 404 {
			t.Errorf("GET of the flags of the process: status %d, want 404", status)
		}
		var got api.Status
		s.read(api.StatusPath, &got)
		if !got.Ready || got.Version != "v1.2.3" || got.Config.File != s.path("hookferry.yaml") || got.Calls.Accepted != 1 || got.Calls.Unknown != 1 {
			t.Errorf("the status is %+v, want a ready server with one accepted call and one with an unknown key", got)
		}
		if err := s.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		s.await(`msg=request method=POST path=/v1/track status=200 .* source=web .* accepted=1`)
		s.await(`msg=request .* status=401`)
		if text := s.text(); strings.Contains(text, "k1") || strings.Contains(text, "level=ERROR") {
			t.Errorf("the log has a key or an error:\n%s", text)
		}
	})
}

// TestServerRefusesToStart shows that Run names the setting that keeps the server from starting.
func TestServerRefusesToStart(t *testing.T) {
	var network memnet.Network
	taken, err := network.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		key  string
		set  func(s *config.Settings)
	}{
		{"address in use", "listen", func(s *config.Settings) { s.Listen = taken.Addr().String() }},
		{"address of the page in use", "admin.listen", func(s *config.Settings) { s.Admin.Listen = taken.Addr().String() }},
		{"data is a file", "data", func(s *config.Settings) { s.Data = s.Path }},
		{"no key", "data", func(s *config.Settings) { s.Sources[0].Keys = nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := onSystemNetwork(t).prepare("sources: [{name: web, keys: [k1]}]\n", nil)
			settings, err := s.load()
			if err != nil {
				t.Fatal(err)
			}
			tt.set(settings)
			err = Run(t.Context(), Options{
				Settings: settings, Level: new(slog.LevelVar), Logger: slog.New(slog.DiscardHandler), Getenv: func(string) string { return "" },
				MakeKey: func() (signature.Secret, error) { return "", errors.New("none can be made") },
				Listen:  network.Listen,
			})
			var wrong *SettingError
			if !errors.As(err, &wrong) || wrong.Key != tt.key {
				t.Errorf("Run: %v, want a *SettingError for %s", err, tt.key)
			}
		})
	}
}

// TestReloadAppliesNewSettings changes the settings of a running server.
func TestReloadAppliesNewSettings(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		first, second := w.sink(), w.sink()
		file := func(crm, more string) string {
			return fmt.Sprintf("sources: [{name: web, keys: [k1], destinations: [crm]}]\ndestinations: [{id: crm, endpoints: [{url: %q}]}]\n%s", crm, more)
		}
		s := w.start(file(first.url, ""))
		reload := func(text string) {
			s.write(text)
			s.reload <- os.Interrupt // any signal
			synctest.Wait()
		}
		send := func(key, event string, want int) {
			t.Helper()
			if got := s.call(key, event); got != want {
				t.Fatalf("the call %s got the status %d, want %d", event, got, want)
			}
		}
		send("k1", "Before", 200)
		first.want("Before")

		reload(file(second.url, ""))
		send("k1", "Elsewhere", 200)
		second.want("Elsewhere")

		// Wrong settings change nothing. The status reports their error.
		reload("destinations: [{id: crm}]\n")
		send("k1", "Still", 200)
		second.want("Still")
		var status api.Status
		s.read(api.StatusPath, &status)
		if !strings.Contains(status.Config.Error, "destinations[0].endpoints: 0 given") {
			t.Errorf("the status has the error %q, want one of destinations[0].endpoints", status.Config.Error)
		}

		// The log names settings that need a restart. The server applies the others.
		reload(file(first.url, "grace: 1s\nlimits: {connections: 3}\nlog: {level: debug}\n"))
		s.await(`msg="some of the new configuration counts only after a restart" keys=\[limits\]`)
		send("k1", "Rest", 200)
		first.want("Rest")
		var after api.Status
		s.read(api.StatusPath, &after)
		if after.Config.Error != "" {
			t.Errorf("the status has the error %q, want none after good settings", after.Config.Error)
		}

		// The deliveries of a removed destination wait until the destination is back. A paused
		// destination stays paused.
		crmPath := strings.NewReplacer("{destination}", "crm")
		if status, text := s.request("POST", s.admin()+crmPath.Replace(api.PausePath)); status != 200 {
			t.Fatalf("pause: status %d, want 200: %s", status, text)
		}
		send("k1", "Kept", 200)
		reload("sources: [{name: web, keys: [k2]}]\n")
		send("k1", "Refused", 401)
		send("k2", "Dropped", 200)
		synctest.Wait() // the outcomes are stored
		if s.read(api.StatusPath, &status); status.Waiting != 1 {
			t.Fatalf("%d deliveries wait, want 1", status.Waiting)
		}
		reload(file(second.url, ""))
		var crm api.Destination
		s.read(crmPath.Replace(api.DestinationPath), &crm)
		if !crm.Paused {
			t.Errorf("the destination is %+v, want it paused as before", crm)
		}
		if status, text := s.request("POST", s.admin()+crmPath.Replace(api.ResumePath)); status != 200 {
			t.Fatalf("resume: status %d, want 200: %s", status, text)
		}
		second.want("Kept")
	})
}

// TestReloadShowsNoSettingsThatAwaitARestart shows that the admin API follows the settings in use: it
// lists the delivered deliveries that the store keeps until the restart.
func TestReloadShowsNoSettingsThatAwaitARestart(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const file = "sources: [{name: web, keys: [k1]}]\n"
		s := w.start(file + "history: {maxAge: 1h}\n")
		s.write(file)
		s.reload <- os.Interrupt
		s.await(`msg="some of the new configuration counts only after a restart" keys=\[history\]`)
		var status api.Status
		if s.read(api.StatusPath, &status); !status.Config.History {
			t.Error("the status says that the server keeps no delivered deliveries, but it does until the restart")
		}
		if code, text := s.request("GET", s.admin()+api.DeliveriesPath+"?state=delivered"); code != 200 {
			t.Errorf("the list of delivered deliveries: status %d, want 200: %s", code, text)
		}
	})
}

// TestChangedFilesAreReadAgain shows that the server reads changed files again without a signal:
// the configuration file, and the files that it names. The server waits until a file has stayed
// the same for config.WatchEvery.
func TestChangedFilesAreReadAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.replace("key", "k1")
		s := w.start(`sources: [{name: web, keys: ["file:key"]}]`)
		status := func(key string, want int) {
			t.Helper()
			if got := s.call(key, "Any"); got != want {
				t.Errorf("a call with the key %s got the status %d, want %d", key, got, want)
			}
		}
		time.Sleep(config.WatchEvery / 2) // the middle between two checks
		status("k1", 200)
		w.replace("key", "k2")
		time.Sleep(config.WatchEvery) // the server sees the change, but the file may still be changing
		status("k1", 200)
		time.Sleep(config.WatchEvery)
		status("k1", 401)
		status("k2", 200)

		s.write(`sources: [{name: web, keys: [k3]}]`)
		time.Sleep(2 * config.WatchEvery)
		status("k2", 401)
		status("k3", 200)
		if n := strings.Count(s.text(), `msg="new configuration"`); n != 2 {
			t.Errorf("the server read the settings again %d times, want 2", n)
		}
	})
}

// TestTLSCertificatesAreRenewed runs both listeners with TLS. The server uses a new certificate
// once its file has changed.
func TestTLSCertificatesAreRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		const token = "0123456789abcdef"
		s := w.prepare(`
admin: {listen: "127.0.0.1:0", token: "`+token+`", tls: {certificate: admin.pem, key: admin-key.pem}}
tls: {certificate: calls.pem, key: calls-key.pem}
sources: [{name: web, keys: [k1]}]
`, nil)
		old := w.certificate("calls", 1)
		control := w.certificate("admin", 2)
		s.begin()
		base := "https://" + s.public()
		if status := s.callBy(w.trusting(old), base, "k1", "One"); status != 200 {
			t.Errorf("a call got the status %d, want 200", status)
		}
		resp, err := w.trusting(old).Get(base + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.ProtoMajor != 2 {
			t.Errorf("the answer uses %s, want HTTP/2", resp.Proto)
		}

		for sent, want := range map[string]int{token: 200, "": 401, "wrong": 401} {
			for _, path := range []string{api.StatusPath, "/metrics", "/debug/pprof/heap"} {
				r, err := http.NewRequest("GET", s.admin()+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer "+sent)
				if status, _ := s.do(w.trusting(control), r); status != want {
					t.Errorf("GET %s with the token %q: status %d, want %d", path, sent, status, want)
				}
			}
		}

		renewed := w.certificate("calls", 3)
		s.await(`msg="new configuration"`)
		if status := s.callBy(w.trusting(renewed), base, "k1", "Two"); status != 200 {
			t.Errorf("a call over the new certificate got the status %d, want 200", status)
		}
		if _, err := w.trusting(old).Get(base + "/healthz"); err == nil {
			t.Error("the server still uses the old certificate")
		}
		if err := s.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// slowReceiver returns the URL of a receiver that sends to begun when a request has begun. It
// answers once finish is closed.
func (w *world) slowReceiver() (url string, begun, finish chan struct{}) {
	begun, finish = make(chan struct{}, 10), make(chan struct{})
	url = w.receiver(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // net/http notices that the client is gone only after the body
		begun <- struct{}{}
		select {
		case <-finish:
		case <-r.Context().Done():
		}
	})
	return url, begun, finish
}

// TestStopDrainsThenFinishesDeliveries stops a busy server. The server first reports that it is
// not ready, and accepts calls for the drain time. Then it finishes the attempts in flight.
func TestStopDrainsThenFinishesDeliveries(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		url, begun, finish := w.slowReceiver()
		s := w.start(fmt.Sprintf(`
drain: 2s
sources: [{name: web, keys: [k1], destinations: [crm]}, {name: app, keys: [k2]}]
destinations: [{id: crm, endpoints: [{url: %q}]}]
`, url))
		base := "http://" + s.public()
		if status := s.call("k1", "Slow"); status != 200 {
			t.Fatalf("the call got the status %d, want 200", status)
		}
		<-begun
		s.cancel()
		time.Sleep(2*time.Second - 1)
		if status, _ := s.request("GET", base+"/readyz"); status != 503 {
			t.Errorf("during the drain time, /readyz has the status %d, want 503", status)
		}
		if status := s.call("k2", "Late"); status != 200 {
			t.Errorf("during the drain time, a call got the status %d, want 200", status)
		}
		// After the drain time the server takes no calls, but the admin API still answers.
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if c, err := w.dial(t.Context(), "tcp", s.public()); err == nil {
			t.Error("the listener of calls is open after the drain time, want it closed")
			c.Close()
		}
		var status api.Status
		s.read(api.StatusPath, &status)
		if status.Ready || status.Totals.InFlight != 1 {
			t.Errorf("the status is %+v, want not ready and one attempt in flight", status)
		}
		close(finish)
		if err := s.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		s.await("msg=stopped")
		if strings.Contains(s.text(), "cut off") {
			t.Errorf("the log says that something was cut off, want nothing:\n%s", s.text())
		}
	})
}

// TestStopCutsOffRequestsAfterTheGrace shows what happens at the end of the grace. The server cuts
// off requests, which their senders repeat. It cuts off attempts, and repeats them after the next
// start.
func TestStopCutsOffRequestsAfterTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		url, begun, _ := w.slowReceiver()
		file := fmt.Sprintf("grace: 4s\nsources: [{name: web, keys: [k1], destinations: [crm]}]\ndestinations: [{id: crm, endpoints: [{url: %q}]}]\n", url)
		s := w.start(file)
		if status := s.call("k1", "Cut"); status != 200 {
			t.Fatalf("the call got the status %d, want 200", status)
		}
		<-begun
		slow := w.raw(s.public(), "POST /v1/track HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")
		synctest.Wait()
		began := time.Now()
		if err := s.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("the server stopped after %v, want the grace of 4s", took)
		}
		slow.wantEnd(began.Add(4 * time.Second))
		s.await(`msg="requests were cut off; their senders will repeat them"`)
		s.await(`msg="attempts were cut off; they are repeated after the next start"`)
		w.start(file)
		<-begun
	})
}

// TestRestartUnderLoad stops and starts a server under load. Every accepted call arrives once.
func TestRestartUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		receiver := w.sink()
		file := fmt.Sprintf("sources: [{name: web, keys: [k1], destinations: [crm]}]\ndestinations: [{id: crm, endpoints: [{url: %q}]}]\n", receiver.url)
		want := map[string]int{}
		for round := range 3 {
			s := w.start(file)
			address := s.public()
			var mu sync.Mutex
			var senders sync.WaitGroup
			for sender := range 4 {
				senders.Go(func() {
					for n := 0; ; n++ {
						event := fmt.Sprintf("%d-%d-%d", round, sender, n)
						r, err := http.NewRequest("POST", "http://"+address+"/v1/track", strings.NewReader(`{"writeKey":"k1","event":"`+event+`","userId":"u"}`))
						if err != nil {
							t.Error(err)
							return
						}
						resp, err := w.client.Do(r)
						if err != nil {
							return // the server has stopped
						}
						if resp.Body.Close(); resp.StatusCode == 200 {
							mu.Lock()
							want[event] = 1
							mu.Unlock()
						}
						time.Sleep(time.Millisecond)
					}
				})
			}
			time.Sleep(50 * time.Millisecond)
			if err := s.stop(); err != nil {
				t.Fatalf("Run: %v", err)
			}
			senders.Wait()
		}
		w.start(file)
		synctest.Wait()
		got := map[string]int{}
		for range len(receiver.arrived) {
			got[<-receiver.arrived]++
		}
		if d := cmp.Diff(want, got); d != "" || len(want) < 100 {
			t.Errorf("%d calls were accepted, want at least 100; number of arrivals of each (-want +got):\n%s", len(want), d)
		}
	})
}

// TestStopWhileTheStoreOpensIsNoError shows that Run returns nil if it is stopped while it waits
// for the database.
func TestStopWhileTheStoreOpensIsNoError(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := onSystemNetwork(t).prepare("queue: {url: 'postgres://"+silent.Addr().String()+"/app?sslmode=disable'}\nsources: [{name: web, keys: [k]}]\n", nil)
	s.begin()
	asked, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer asked.Close()
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

// TestStopWhileTheServerConnectsIsNoError stops the server while it waits for a NATS server, which
// then closes the connection. The NATS driver does not look at the context.
func TestStopWhileTheServerConnectsIsNoError(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := onSystemNetwork(t).prepare("queue: {url: 'nats://"+silent.Addr().String()+"'}\nsources: [{name: web, keys: [k]}]\n", nil)
	s.begin()
	asked, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s.cancel()
	asked.Close()
	if err := s.stop(); err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

// TestStopWhileTheDestinationsAreReadIsNoError stops the server before it reads the destinations
// in the store, which it opens without looking at the context.
func TestStopWhileTheDestinationsAreReadIsNoError(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.prepare("sources: [{name: web, keys: [k]}]\n", nil)
		listen := s.listen
		s.listen = func(ctx context.Context, network, address string) (net.Listener, error) {
			defer s.cancel()
			return listen(context.WithoutCancel(ctx), network, address)
		}
		s.begin()
		if err := s.stop(); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
}

// TestServerNotifiesTheServiceManager plays the service manager, systemd. The server reports when
// it is ready, reloads and stops, and sends the watchdog messages.
func TestServerNotifiesTheServiceManager(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Skip("this system has no unixgram sockets:", err)
	}
	defer l.Close()
	states := make(chan string, 100)
	go func() { // runs until l is closed
		b := make([]byte, 4096)
		for {
			n, err := l.Read(b)
			if err != nil {
				close(states)
				return
			}
			states <- string(b[:n])
		}
	}()
	want := func(pattern string) {
		t.Helper()
		for state := range states {
			if regexp.MustCompile(pattern).MatchString(state) {
				return
			}
			if state != "WATCHDOG=1" {
				t.Fatalf("the server notifies %q, want %s", state, pattern)
			}
		}
	}
	file := "sources: [{name: web, keys: [k1]}]\n"
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "20000")
	s := onSystemNetwork(t).prepare(file, nil)
	s.begin()
	want(`^READY=1$`)
	want(`^WATCHDOG=1$`)
	s.reload <- os.Interrupt
	want(`^RELOADING=1\nMONOTONIC_USEC=[1-9]\d+\n$`)
	want(`^READY=1$`)
	s.cancel()
	want(`^STOPPING=1$`)
	go func() { // until l is closed; the server waits for a reader
		for range states {
		}
	}()
	if err := s.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}
