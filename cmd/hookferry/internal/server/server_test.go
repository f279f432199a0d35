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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/signature"
)

// patience bounds every wait for something that is to happen, on a machine that may be busy with the
// tests of others.
const patience = time.Minute

// A running server is one of a test, with its log.
type running struct {
	t      *testing.T
	dir    string
	env    map[string]string
	reload chan os.Signal
	cancel context.CancelFunc
	ended  chan error

	mu   sync.Mutex
	log  bytes.Buffer
	more chan struct{} // closed at the next line
}

// start starts a server on what file says, with listen, admin and data added to
// it, and waits until it runs.
func start(t *testing.T, file string, env map[string]string) *running {
	t.Helper()
	s := prepare(t, file, env)
	s.begin()
	s.await(`msg=listening`)
	return s
}

func prepare(t *testing.T, file string, env map[string]string) *running {
	s := &running{t: t, dir: t.TempDir(), env: env, reload: make(chan os.Signal), ended: make(chan error, 1), more: make(chan struct{})}
	s.write(file)
	return s
}

// write writes the configuration file, in one step.
func (s *running) write(file string) {
	s.t.Helper()
	if !strings.Contains(file, "\nadmin:") {
		file += "\nadmin: {listen: 127.0.0.1:0}\n"
	}
	path := s.path("hookferry.yaml")
	if err := os.WriteFile(path+".new", []byte("listen: 127.0.0.1:0\ndata: data\n"+file), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.t.Fatal(err)
	}
}

func (s *running) path(name string) string { return filepath.Join(s.dir, name) }

func (s *running) load() (*config.Settings, error) {
	return config.Load(s.path("hookferry.yaml"), func(name string) string { return s.env[name] }, nil)
}

func (s *running) begin() {
	s.t.Helper()
	settings, err := s.load()
	if err != nil {
		s.t.Fatal(err)
	}
	level := new(slog.LevelVar)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { // ends at the end of the test at the latest
		s.ended <- Run(ctx, Options{
			Settings: settings, Load: s.load, Reload: s.reload,
			Level: level, Logger: slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: level})),
			Getenv: func(name string) string { return s.env[name] }, Version: "v1.2.3",
		})
	}()
	s.t.Cleanup(func() { s.stop() })
}

// stop stops the server, and returns its error; once.
func (s *running) stop() error {
	s.cancel()
	select {
	case err := <-s.ended:
		s.ended <- err
		return err
	case <-time.After(patience):
		s.t.Fatalf("the server does not stop; its log:\n%s", s.text())
		return nil
	}
}

// Write takes the log.
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

// await waits until the log has what matches, and returns the last group of it.
func (s *running) await(pattern string) string {
	s.t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(patience)
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
			s.t.Fatalf("ended with %v before it logged %s:\n%s", err, pattern, s.text())
		case <-timeout:
			s.t.Fatalf("the log lacks %s:\n%s", pattern, text)
		}
	}
}

func (s *running) public() string { return s.await(`msg=listening address=(\S+)`) }

// admin is the URL of the admin listener, without the slash.
func (s *running) admin() string {
	return strings.TrimSuffix(s.await(`msg="the page is at" url=(\S+)`), "/")
}

// track sends a call, and returns the status.
func (s *running) track(client *http.Client, base, key, event string) int {
	s.t.Helper()
	r, err := http.NewRequest("POST", base+"/v1/track", strings.NewReader(`{"event":"`+event+`","userId":"u","messageId":"`+event+`"}`))
	if err != nil {
		s.t.Fatal(err)
	}
	r.SetBasicAuth(key, "")
	status, _ := s.do(client, r)
	return status
}

func (s *running) do(client *http.Client, r *http.Request) (int, string) {
	s.t.Helper()
	resp, err := client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func (s *running) get(url, token string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return s.do(http.DefaultClient, r)
}

// read reads an answer of the admin API.
func (s *running) read(path string, to any) {
	s.t.Helper()
	status, text := s.get(s.admin()+path, "")
	if status != 200 {
		s.t.Fatalf("GET %s: %d %s", path, status, text)
	}
	if err := json.Unmarshal([]byte(text), to); err != nil {
		s.t.Fatalf("GET %s: %v", path, err)
	}
}

// A sink is a receiver that tells which events arrive.
type sink struct {
	url     string
	arrived chan string
}

func newSink(t *testing.T) *sink {
	s := &sink{arrived: make(chan string, 100)}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var m struct{ Event string }
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			t.Error(err)
		}
		s.arrived <- m.Event
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *sink) want(t *testing.T, event string) {
	t.Helper()
	select {
	case got := <-s.arrived:
		if got != event {
			t.Fatalf("the event %q arrived, want %q", got, event)
		}
	case <-time.After(patience):
		t.Fatalf("the event %q did not arrive", event)
	}
}

// certificate writes a certificate and its key, and returns the former.
func certificate(t *testing.T, dir, name string, serial int64) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + "-key.pem": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestServer(t *testing.T) {
	receiver := newSink(t)
	s := start(t, fmt.Sprintf(`
sources: [{name: web, keys: [k1], destinations: [crm]}]
destinations: [{id: crm, endpoints: [{url: %q}]}]
log: {access: 1}
`, receiver.url), nil)
	base := "http://" + s.public()
	if status := s.track(http.DefaultClient, base, "k1", "One"); status != 200 {
		t.Fatalf("a call is answered by %d", status)
	}
	receiver.want(t, "One")
	if status := s.track(http.DefaultClient, base, "other", "Two"); status != 401 {
		t.Errorf("a call with another key is answered by %d", status)
	}
	for _, at := range []string{base, s.admin()} {
		for _, path := range []string{"/healthz", "/readyz"} {
			if status, text := s.get(at+path, ""); status != 200 || text != "ok\n" {
				t.Errorf("%s%s: %d %q", at, path, status, text)
			}
		}
	}
	if status, _ := s.get(s.admin()+"/", ""); status != 200 {
		t.Errorf("the page: %d", status)
	}
	status, text := s.get(s.admin()+"/metrics", "")
	if status != 200 || !strings.Contains(text, `hookferry_calls_accepted_total{source="web"} 1`) || !strings.Contains(text, `hookferry_http_requests_total{code="401"} 1`) {
		t.Errorf("metrics: %d\n%s", status, text)
	}
	if status, _ := s.get(s.admin()+"/debug/pprof/goroutine?debug=1", ""); status != 200 {
		t.Errorf("a profile: %d", status)
	}
	if status, _ := s.get(s.admin()+"/debug/pprof/cmdline", ""); status != 404 {
		t.Errorf("the flags of the process: %d, want 404", status)
	}
	var got api.Status
	s.read(api.StatusPath, &got)
	if !got.Ready || got.Version != "v1.2.3" || got.Config.File != s.path("hookferry.yaml") || got.Calls.Accepted != 1 || got.Calls.Unknown != 1 {
		t.Errorf("status: %+v", got)
	}
	if err := s.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	s.await(`msg=request method=POST path=/v1/track status=200 .* source=web .* accepted=1`)
	s.await(`msg=request .* status=401`)
	if text := s.text(); strings.Contains(text, "k1") || strings.Contains(text, "level=ERROR") {
		t.Errorf("the log has a key, or an error:\n%s", text)
	}
}

// TestServerRefusesToStart looks at what cannot work.
func TestServerRefusesToStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
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
			s := prepare(t, "sources: [{name: web, keys: [k1]}]\n", nil)
			settings, err := s.load()
			if err != nil {
				t.Fatal(err)
			}
			tt.set(settings)
			err = Run(t.Context(), Options{
				Settings: settings, Level: new(slog.LevelVar), Logger: slog.New(slog.DiscardHandler), Getenv: func(string) string { return "" },
				MakeKey: func() (signature.Secret, error) { return "", errors.New("none can be made") },
			})
			var wrong *SettingError
			if !errors.As(err, &wrong) || wrong.Key != tt.key {
				t.Errorf("Run: %v, want a *SettingError for %s", err, tt.key)
			}
		})
	}
}

// TestReload changes the settings of a server that runs.
func TestReload(t *testing.T) {
	first, second := newSink(t), newSink(t)
	file := func(crm, more string) string {
		return fmt.Sprintf("sources: [{name: web, keys: [k1], destinations: [crm]}]\ndestinations: [{id: crm, endpoints: [{url: %q}]}]\n%s", crm, more)
	}
	s := start(t, file(first.url, ""), nil)
	base := "http://" + s.public()
	reload := func(text string) {
		s.write(text)
		s.reload <- os.Interrupt // any signal
		s.reload <- os.Interrupt // is taken when the first has been followed
	}
	send := func(key, event string, want int) {
		t.Helper()
		if got := s.track(http.DefaultClient, base, key, event); got != want {
			t.Fatalf("the call %s is answered by %d, want %d", event, got, want)
		}
	}
	send("k1", "Before", 200)
	first.want(t, "Before")

	reload(file(second.url, ""))
	send("k1", "Elsewhere", 200)
	second.want(t, "Elsewhere")

	// What is bad changes nothing, and is told.
	reload("destinations: [{id: crm}]\n")
	send("k1", "Still", 200)
	second.want(t, "Still")
	var status api.Status
	s.read(api.StatusPath, &status)
	if !strings.Contains(status.Config.Error, "destinations[0].endpoints: 0 given") {
		t.Errorf("the status has the error %q", status.Config.Error)
	}

	// What needs a restart is told, and the rest used.
	reload(file(first.url, "grace: 1s\nlimits: {connections: 3}\nlog: {level: debug}\n"))
	s.await(`msg="some of the new configuration counts after a restart" keys=\[limits\]`)
	send("k1", "Rest", 200)
	first.want(t, "Rest")
	var after api.Status
	s.read(api.StatusPath, &after)
	if after.Config.Error != "" {
		t.Errorf("the error stays: %q", after.Config.Error)
	}

	// The deliveries of a destination that is removed wait until it is back;
	// a pause stays a pause.
	resp, err := http.Post(s.admin()+strings.Replace(api.PausePath, "{destination}", "crm", 1), "", nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("pause: %v, %v", resp, err)
	}
	resp.Body.Close()
	send("k1", "Kept", 200)
	reload("sources: [{name: web, keys: [k2]}]\n")
	send("k1", "Refused", 401)
	send("k2", "Dropped", 200)
	for deadline := time.Now().Add(patience); ; {
		s.read(api.StatusPath, &status)
		if status.Waiting == 1 {
			break
		}
		if time.Now().After(deadline) { // what has arrived waits until that is stored
			t.Fatalf("%d deliveries wait, want 1", status.Waiting)
		}
	}
	reload(file(second.url, ""))
	var crm api.Destination
	s.read(strings.Replace(api.DestinationPath, "{destination}", "crm", 1), &crm)
	if !crm.Paused {
		t.Errorf("the destination is not paused any more: %+v", crm)
	}
	resp, err = http.Post(s.admin()+strings.Replace(api.ResumePath, "{destination}", "crm", 1), "", nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("resume: %v, %v", resp, err)
	}
	resp.Body.Close()
	second.want(t, "Kept")
}

// TestTLS looks at both listeners with certificates, which change.
func TestTLS(t *testing.T) {
	const token = "0123456789abcdef"
	s := prepare(t, `
admin: {listen: "127.0.0.1:0", token: "`+token+`", tls: {certificate: admin.pem, key: admin-key.pem}}
tls: {certificate: calls.pem, key: calls-key.pem}
sources: [{name: web, keys: [k1]}]
`, nil)
	old := certificate(t, s.dir, "calls", 1)
	control := certificate(t, s.dir, "admin", 2)
	s.begin()
	client := func(of *x509.Certificate) *http.Client {
		pool := x509.NewCertPool()
		pool.AddCert(of)
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	base := "https://" + s.public()
	if status := s.track(client(old), base, "k1", "One"); status != 200 {
		t.Errorf("a call is answered by %d", status)
	}
	resp, err := client(old).Get(base + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.ProtoMajor != 2 {
		t.Errorf("the answer is by %s, want HTTP/2", resp.Proto)
	}

	for sent, want := range map[string]int{token: 200, "": 401, "wrong": 401} {
		for _, path := range []string{api.StatusPath, "/metrics", "/debug/pprof/heap"} {
			r, err := http.NewRequest("GET", s.admin()+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+sent)
			if status, _ := s.do(client(control), r); status != want {
				t.Errorf("%s with the token %q: %d, want %d", path, sent, status, want)
			}
		}
	}

	// Without a signal: the files are looked at.
	renewed := certificate(t, s.dir, "calls", 3)
	s.await(`msg="new configuration"`)
	if status := s.track(client(renewed), base, "k1", "Two"); status != 200 {
		t.Errorf("with the new certificate, a call is answered by %d", status)
	}
	if _, err := client(old).Get(base + "/healthz"); err == nil {
		t.Error("the certificate of before is still in use")
	}
	if err := s.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestStop stops a server that is busy: it says that it is not ready first,
// takes calls for the drain time, then finishes what it has.
func TestStop(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(begun)
		<-finish
	}))
	defer slow.Close()
	s := start(t, fmt.Sprintf(`
drain: 2s
sources: [{name: web, keys: [k1], destinations: [crm]}, {name: app, keys: [k2]}]
destinations: [{id: crm, endpoints: [{url: %q}]}]
`, slow.URL), nil)
	base := "http://" + s.public()
	if status := s.track(http.DefaultClient, base, "k1", "Slow"); status != 200 {
		t.Fatalf("the call is answered by %d", status)
	}
	<-begun
	s.cancel()
	s.await(`msg=stopping`)
	if status, _ := s.get(base+"/readyz", ""); status != 503 {
		t.Errorf("while it stops, /readyz says %d", status)
	}
	if status := s.track(http.DefaultClient, base, "k2", "Late"); status != 200 {
		t.Errorf("during the drain time, a call is answered by %d", status)
	}
	// Once calls are not taken any more, one can still look.
	for deadline := time.Now().Add(patience); ; {
		c, err := net.Dial("tcp", s.public())
		if err != nil {
			break
		}
		c.Close()
		if time.Now().After(deadline) {
			t.Fatal("the listener of calls stays open")
		}
	}
	var status api.Status
	s.read(api.StatusPath, &status)
	if status.Ready || status.Totals.InFlight != 1 {
		t.Errorf("while an attempt is under way, the status is %+v", status)
	}
	close(finish)
	if err := s.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	s.await("msg=stopped")
	if strings.Contains(s.text(), "cut off") {
		t.Errorf("something was cut off:\n%s", s.text())
	}
}

// A stop while the database is waited for is a stop, and no failure.
func TestStopWhileTheStoreOpens(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := prepare(t, "queue: {url: 'postgres://"+silent.Addr().String()+"/app?sslmode=disable'}\nsources: [{name: web, keys: [k]}]\n", nil)
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

// TestNotify is the service manager.
func TestNotify(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Skip("there are no such sockets here:", err)
	}
	defer l.Close()
	states := make(chan string, 100)
	go func() { // until l is closed
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
		timeout := time.After(patience)
		for {
			select {
			case state := <-states:
				if regexp.MustCompile(pattern).MatchString(state) {
					return
				}
				if state != "WATCHDOG=1" {
					t.Fatalf("the server tells %q, want %s", state, pattern)
				}
			case <-timeout:
				t.Fatalf("the server does not tell %s", pattern)
			}
		}
	}
	file := "sources: [{name: web, keys: [k1]}]\n"
	s := start(t, file, map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": strconv.Itoa(os.Getpid())})
	want(`^READY=1\nMAINPID=\d+$`)
	want(`^WATCHDOG=1$`)
	s.reload <- os.Interrupt
	want(`^RELOADING=1\nMONOTONIC_USEC=[1-9]\d+$`)
	want(`^READY=1\n`)
	s.cancel()
	want(`^STOPPING=1$`)
	if err := s.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestWatchdogOfAnother(t *testing.T) {
	env := map[string]string{"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
	if n := newNotifier(func(name string) string { return env[name] }, 2); n.beat != 0 {
		t.Errorf("signs of life every %v for another process", n.beat)
	}
	env["WATCHDOG_PID"] = "2"
	if n := newNotifier(func(name string) string { return env[name] }, 2); n.beat != 500*time.Millisecond {
		t.Errorf("signs of life every %v, want every half second", n.beat)
	}
}
