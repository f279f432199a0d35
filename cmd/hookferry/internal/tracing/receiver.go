package tracing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// protobuf is the form of requests and answers.
const protobuf = "application/x-protobuf"

// defaultTimeout bounds a request (OTEL_EXPORTER_OTLP_TIMEOUT).
const defaultTimeout = 10 * time.Second

// An environment looks up OpenTelemetry's variables of exporters.
type environment func(string) string

// find returns the variable of traces, or else the general one, and its name.
func (e environment) find(what string) (name, value string) {
	for _, prefix := range []string{"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"} {
		if value := strings.TrimSpace(e(prefix + what)); value != "" {
			return prefix + what, value
		}
	}
	return "", ""
}

// newUploader returns an uploader to the endpoint and with the headers of the
// settings, and for what these leave out of the environment. Its errors have
// names of variables, no values.
func newUploader(c *Config, getenv environment) (*uploader, error) {
	to, err := getenv.target(c.Endpoint)
	if err != nil {
		return nil, err
	}
	headers := c.Headers
	if len(headers) == 0 {
		if headers, err = getenv.headers(); err != nil {
			return nil, err
		}
	}
	timeout := defaultTimeout
	if name, value := getenv.find("TIMEOUT"); value != "" {
		ms, err := strconv.ParseInt(value, 10, 32)
		if err != nil || ms < 1 {
			return nil, fmt.Errorf("%s: want milliseconds, from 1", name)
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	secure, err := getenv.tls()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = secure
	if c.Dial != nil {
		transport.DialContext = c.Dial
	}
	u := &uploader{
		to:     to,
		header: http.Header{"User-Agent": {"hookferry"}},
		client: &http.Client{
			Transport: transport, Timeout: timeout,
			// The headers are for the receiver alone.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	for name, value := range headers {
		u.header.Set(name, value)
	}
	u.header.Set("Content-Type", protobuf)
	if _, value := getenv.find("COMPRESSION"); value == "gzip" {
		u.gzip = true
		u.header.Set("Content-Encoding", "gzip")
	}
	u.stopped, u.stop = context.WithCancel(context.Background())
	return u, nil
}

// target returns the URL that traces are sent to: below a base URL, which is the
// endpoint of the settings or the general variable, or that of traces as it is.
func (e environment) target(endpoint string) (string, error) {
	name, whole := "the endpoint", false
	if endpoint == "" {
		name, endpoint = e.find("ENDPOINT")
		whole = name == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("%s is no URL of http or https", name)
	}
	if !whole {
		u = u.JoinPath("v1", "traces")
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String(), nil
}

// headers reads "a=1,b=2", with values that may be percent-encoded.
func (e environment) headers() (map[string]string, error) {
	name, list := e.find("HEADERS")
	if list == "" {
		return nil, nil
	}
	headers := map[string]string{}
	for pair := range strings.SplitSeq(list, ",") {
		key, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(value)
		if key = strings.TrimSpace(key); !ok || key == "" || err != nil {
			return nil, fmt.Errorf("%s: want a list of NAME=VALUE with commas", name)
		}
		headers[key] = strings.TrimSpace(value)
	}
	return headers, nil
}

// tls returns the authorities and the certificate for the receiver, nil if the
// system's are enough.
func (e environment) tls() (*tls.Config, error) {
	c := &tls.Config{}
	if name, file := e.find("CERTIFICATE"); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: the file has no certificate", name)
		}
	}
	name, certificate := e.find("CLIENT_CERTIFICATE")
	_, key := e.find("CLIENT_KEY")
	if certificate != "" && key != "" {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if c.RootCAs == nil && c.Certificates == nil {
		return nil, nil
	}
	return c, nil
}
