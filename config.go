package analytics

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

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
// such a setting returns a ConfigError.
type ConfigError struct {
	Field   string // the field of Client, or "write key"
	Problem string
	Err     error // the error of the file system about SpoolDir, or nil
}

func (e *ConfigError) Error() string {
	text := "analytics: " + e.Field + " " + e.Problem
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *ConfigError) Unwrap() error { return e.Err }

func refuse(field, format string, args ...any) error {
	return &ConfigError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

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
	s := &settings{
		flushAt:    cmp.Or(c.FlushAt, c.Size, DefaultFlushAt),
		flushAfter: cmp.Or(c.FlushAfter, DefaultFlushAfter),
		timeout:    cmp.Or(c.Timeout, DefaultTimeout),
		maxMemory:  cmp.Or(c.MaxMemory, DefaultMaxMemory),
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
			MaxBytes:    cmp.Or(c.SpoolMax, DefaultSpoolMax),
			Sync:        c.SpoolSync,
			Reserve:     c.reserve,
		},
	}
	writeKey := os.Getenv(writeKeyVariable)
	if c.writeKey != nil && *c.writeKey != "" {
		writeKey = *c.writeKey
	}
	if writeKey == "" {
		return nil, refuse("write key", "is empty: give New the write key of a source, or set %s", writeKeyVariable)
	}
	if strings.ContainsRune(writeKey, ':') {
		return nil, refuse("write key", "holds a colon")
	}
	s.header = http.Header{
		"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte(writeKey+":"))},
		"Content-Type":  {"application/json"},
		"User-Agent":    {libraryName + "/" + Version},
	}
	if c.Gzip {
		s.header["Content-Encoding"] = []string{"gzip"}
	}
	var err error
	if s.url, err = batchURL(cmp.Or(c.Endpoint, os.Getenv(endpointVariable))); err != nil {
		return nil, err
	}
	for _, n := range []struct {
		field string
		value int64
	}{
		{"Size", int64(c.Size)},
		{"FlushAt", int64(c.FlushAt)},
		{"FlushAfter", int64(c.FlushAfter)},
		{"Timeout", int64(c.Timeout)},
		{"MaxMemory", int64(c.MaxMemory)},
		{"SpoolMax", c.SpoolMax},
	} {
		if n.value < 0 {
			return nil, refuse(n.field, "is negative")
		}
	}
	if c.SpoolSync < 0 && c.SpoolSync != SyncEachCall {
		return nil, refuse("SpoolSync", "is negative, and not SyncEachCall")
	}
	if s.maxMemory < MaxBatchSize {
		return nil, refuse("MaxMemory", "is %d, less than one batch of %d bytes", s.maxMemory, MaxBatchSize)
	}
	s.unloadAbove = s.maxMemory // batches never move without SpoolDir
	if s.spoolOnly && s.spoolDir == "" {
		return nil, refuse("SpoolOnly", "is set without SpoolDir")
	}
	if s.spoolDir != "" {
		switch {
		case s.maxMemory < minSpoolMemory:
			return nil, refuse("MaxMemory", "is %d, less than the %d that SpoolDir needs", s.maxMemory, minSpoolMemory)
		case s.spool.MaxBytes < minSpoolMax:
			return nil, refuse("SpoolMax", "is %d, less than %d", s.spool.MaxBytes, minSpoolMax)
		}
		s.uploadMemory = maxUploads * MaxBatchSize
		s.unloadAbove = (s.maxMemory - s.uploadMemory) / 2
	}
	if s.transport == nil {
		s.own = newTransport()
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

// batchURL returns the URL to which batches for an endpoint are sent. Its errors do not
// repeat the endpoint, which may hold credentials.
func batchURL(endpoint string) (*url.URL, error) {
	u, err := weburl.Parse(cmp.Or(endpoint, DefaultEndpoint))
	switch {
	case err != nil:
		return nil, refuse("Endpoint", "%v", err)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, refuse("Endpoint", "is not an http or https URL")
	case u.Hostname() == "":
		return nil, refuse("Endpoint", "has no host")
	case u.User != nil:
		return nil, refuse("Endpoint", "holds a user name; the write key is what identifies the source")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, refuse("Endpoint", "has a query or a fragment")
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

// newTransport returns a transport for one host and maxUploads requests at once. Its write
// buffer has room for an ordinary batch, so that sending the batch takes one system call.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 5 * time.Second,
		MaxIdleConns:        maxUploads,
		MaxIdleConnsPerHost: maxUploads,
		IdleConnTimeout:     90 * time.Second,
		WriteBufferSize:     32 << 10,

		MaxResponseHeaderBytes: maxAnswerHeader,
	}
}
