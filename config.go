package analytics

import (
	"cmp"
	"context"
	"encoding/base64"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/hookferry/analytics/check"
	"github.com/hookferry/analytics/internal/dial"
	"github.com/hookferry/analytics/internal/spool"
	"github.com/hookferry/analytics/internal/weburl"
)

// The defaults of the Client's fields.
const (
	DefaultEndpoint   = "http://localhost:8080" // where hookferry serve listens
	DefaultFlushAt    = 20                      // messages
	DefaultFlushAfter = 5 * time.Second
	DefaultTimeout    = 10 * time.Second
	DefaultMaxMemory  = 64 << 20 // bytes
	DefaultSpoolMax   = 1 << 30  // bytes
)

// The client reads these environment variables if the program leaves the setting empty.
const (
	writeKeyVariable = "HOOKFERRY_WRITE_KEY"
	endpointVariable = "HOOKFERRY_ENDPOINT"
)

// SyncEachCall is a value of Client.SpoolSync. It makes each call wait until its
// message is synced to the disk.
const SyncEachCall time.Duration = spool.SyncEach

// minSpoolMemory is the smallest MaxMemory with SpoolDir. It has room for maxUploads
// batches under way, a batch that collects messages, and a batch that waits to be moved to
// the disk.
const minSpoolMemory = (maxUploads + 2) * MaxBatchSize

// minSpoolMax is the smallest SpoolMax. It has room for the files of
// maxUploads + 2 batches.
const minSpoolMax = (maxUploads + 2) * (MaxBatchSize + 128 + 8*MaxBatchCalls)

// A ConfigError says which setting of a Client cannot be used. Every call of a client with
// such settings returns a ConfigError for each of them, joined by errors.Join.
type ConfigError struct {
	Field   string // the field of Client, or "write key"
	Problem string
	Err     error // the error of the file system about SpoolDir, or nil
}

func (e *ConfigError) Error() string {
	text := "analytics: " + e.Field + ": " + e.Problem
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *ConfigError) Unwrap() error { return e.Err }

// settings are a copy of the Client's fields that the first call makes, with the defaults
// filled in. The Client holds the settings by a pointer. So printing a Client does not
// print the write key, which is in header.
type settings struct {
	url        *url.URL
	header     http.Header // headers of every request
	flushAt    int
	flushAfter time.Duration
	timeout    time.Duration
	maxMemory  int

	// With SpoolDir, uploadMemory bytes of maxMemory are reserved for batches under way. So
	// batches on disk can be read into memory even while many messages wait in memory. If
	// the messages that are not under way take more than unloadAbove bytes, waiting batches
	// move to the disk. Without SpoolDir, uploadMemory is 0 and unloadAbove is maxMemory.
	uploadMemory int
	unloadAbove  int

	spoolDir   string
	spool      spool.Config
	spoolOnly  bool
	gzip       bool
	transport  http.RoundTripper
	own        *http.Transport // the same as transport if the client made it, else nil
	log        *slog.Logger
	onDelivery func(Delivery)
}

// settings checks the fields and replaces zeros by the defaults.
func (c *Client) settings() (*settings, error) {
	writeKey := os.Getenv(writeKeyVariable)
	if c.writeKey != nil && *c.writeKey != "" {
		writeKey = *c.writeKey
	}
	s := &settings{
		header:     headers(writeKey, c.Gzip),
		flushAt:    cmp.Or(c.FlushAt, c.Size),
		flushAfter: c.FlushAfter,
		timeout:    c.Timeout,
		maxMemory:  c.MaxMemory,
		spoolDir:   c.SpoolDir,
		spoolOnly:  c.SpoolOnly,
		gzip:       c.Gzip,
		transport:  c.Transport,
		log:        c.Logger,
		onDelivery: c.OnDelivery,
		spool: spool.Config{
			Head:        batchHead,
			MaxData:     MaxBatchSize - tailSize,
			MaxMessages: MaxBatchCalls,
			MaxBytes:    c.SpoolMax,
			Sync:        c.SpoolSync,
			Reserve:     c.reserve,
		},
	}
	if wrong := c.complete(s, writeKey); wrong != nil {
		return nil, wrong.As(func(f check.Fault) error { return &ConfigError{Field: f.Field, Problem: f.Problem} })
	}
	s.unloadAbove = s.maxMemory // batches never move without SpoolDir
	if s.spoolDir != "" {
		s.uploadMemory = maxUploads * MaxBatchSize
		s.unloadAbove = (s.maxMemory - s.uploadMemory) / 2
	}
	if s.transport == nil {
		s.own = newTransport(s.timeout)
		s.transport = s.own
	}
	if s.log == nil {
		s.log = slog.New(warnings{})
		if debugging(os.Getenv("DEBUG")) {
			s.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
	}
	return s, nil
}

// complete sets the URL and the defaults of s, and returns what is wrong with the fields of c.
func (c *Client) complete(s *settings, writeKey string) (wrong check.Faults) {
	leastMemory, leastSpool := MaxBatchSize, int64(0)
	if c.SpoolDir != "" {
		leastMemory, leastSpool = minSpoolMemory, minSpoolMax
	}
	wrong.Refuse(writeKey == "", "write key", "is empty: give New the write key of a source, or set %s", writeKeyVariable)
	wrong.Refuse(strings.ContainsRune(writeKey, ':'), "write key", "holds a colon")
	var err error
	s.url, err = batchURL(cmp.Or(c.Endpoint, os.Getenv(endpointVariable)))
	wrong.Refuse(err != nil, "Endpoint", "%v", err)
	wrong.Refuse(c.FlushAt < 0, "FlushAt", "is %d; 0 or more is allowed", c.FlushAt)
	wrong.Refuse(c.Size < 0, "Size", "is %d; 0 or more is allowed", c.Size)
	s.flushAt = cmp.Or(s.flushAt, DefaultFlushAt)
	check.Least(&wrong, "FlushAfter", &s.flushAfter, 0, DefaultFlushAfter)
	check.Least(&wrong, "Timeout", &s.timeout, 0, DefaultTimeout)
	check.Least(&wrong, "MaxMemory", &s.maxMemory, leastMemory, DefaultMaxMemory)
	check.Least(&wrong, "SpoolMax", &s.spool.MaxBytes, leastSpool, DefaultSpoolMax)
	wrong.Refuse(c.SpoolSync < 0 && c.SpoolSync != SyncEachCall, "SpoolSync", "is negative, and not SyncEachCall")
	wrong.Refuse(c.SpoolOnly && c.SpoolDir == "", "SpoolOnly", "is set without SpoolDir")
	return wrong
}

// headers returns the headers of every request.
func headers(writeKey string, gzip bool) http.Header {
	h := http.Header{
		"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte(writeKey+":"))},
		"Content-Type":  {"application/json"},
		"User-Agent":    {libraryName + "/" + Version},
	}
	if gzip {
		h["Content-Encoding"] = []string{"gzip"}
	}
	return h
}

// batchURL returns the URL to which batches for an endpoint are sent. Its errors do not
// repeat the endpoint, which may hold credentials.
func batchURL(endpoint string) (*url.URL, error) {
	u, err := weburl.ParseBase(cmp.Or(endpoint, DefaultEndpoint))
	if err != nil {
		return nil, err
	}
	if u.Path == "" {
		u.Path = "/" // without it, JoinPath returns a relative path, which no server accepts
	}
	switch base := path.Clean(u.Path); {
	case strings.HasSuffix(base, "/v1/batch"):
		return u.JoinPath("..", "batch"), nil // without a slash at the end
	case strings.HasSuffix(base, "/v1"):
		return u.JoinPath("batch"), nil
	}
	return u.JoinPath("v1", "batch"), nil
}

// debugging reports whether the value of DEBUG, a list separated by commas or
// spaces, names this library.
func debugging(value string) bool {
	for name := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' || r == ' ' }) {
		if name == "analytics" || name == "*" {
			return true
		}
	}
	return false
}

// maxAnswerHeader bounds the headers of an answer, including informational answers (1xx)
// before it. It is far above what collectors send. The default of net/http, 10 MB for each
// upload, would be too much.
const maxAnswerHeader = 64 << 10

// newTransport returns a transport for one host and maxUploads requests at once. A request may take
// as long as timeout, of which dialing the addresses of the host may take up to 5 seconds. The
// write buffer has room for an ordinary batch, so that sending the batch takes one system call.
func newTransport(timeout time.Duration) *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialWithin(min(timeout, 5*time.Second), new(dial.Dialer)),
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConns:        maxUploads,
		MaxIdleConnsPerHost: maxUploads,
		IdleConnTimeout:     90 * time.Second,
		WriteBufferSize:     32 << 10,

		MaxResponseHeaderBytes: maxAnswerHeader,
	}
}

// dialWithin returns a DialContext by d that takes up to limit.
func dialWithin(limit time.Duration, d *dial.Dialer) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return d.Dial(ctx, network, addr, nil)
	}
}
