package api

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/webhook"
)

// The time limits of a Client. The last two are for requests that take longer than others.
const (
	answerTimeout = 30 * time.Second // of a whole answer
	lineTimeout   = 4 * KeepAlive    // of the next line of a stream
	TestTimeout   = 5 * time.Minute  // more than the time limits of all requests of a test
	StoreTimeout  = time.Hour        // the server may read its whole store
)

// The bounds of what a Client reads, in bytes, and the size of a page.
const (
	maxAnswer  = 64 << 20 // an answer that is no stream
	maxLine    = 4 << 20  // a line of a stream
	maxRefusal = 64 << 10 // an answer that is an Error
	PageSize   = 500      // values of a listing in one request
)

// ErrCutOff says that a stream ended without its last line. Work that the server has done stays
// done.
var ErrCutOff = errors.New("the server ended its answer early; is it stopping?")

// A Client calls the admin API of one server, and is safe for concurrent use.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
}

// NewClient returns a client of the server at base, a URL or host:port. The client sends the token
// unless it is empty. A nil transport means net/http's default.
func NewClient(base, token string, transport http.RoundTripper) (*Client, error) {
	u, err := ParseBase(base)
	if err != nil {
		return nil, err
	}
	return &Client{base: u, token: token, http: &http.Client{
		Transport: transport,
		// A redirect could send the token to another server, and turn a POST into a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// ParseBase returns the URL of a server, given as a URL or host:port; no host means localhost.
func ParseBase(base string) (*url.URL, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := webhook.ParseURL(base)
	switch {
	case err != nil:
		return nil, fmt.Errorf("want a URL or host:port; it %w", err)
	case u.Host == "" || u.Opaque != "":
		return nil, errors.New("want a URL or host:port")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("has the scheme %q; http and https are allowed", u.Scheme)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("want a URL without user, query and fragment")
	}
	if u.Hostname() == "" {
		u.Host = "localhost:" + u.Port()
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

// Host returns the host and port of the server.
func (c *Client) Host() string { return c.base.Host }

// Token returns the token that the client sends, "" if it sends none.
func (c *Client) Token() string { return c.token }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// A Request is one request of the admin API.
type Request struct {
	Method string     // "" means GET
	Path   string     // one of the path constants, with its names filled in by the function Path
	Query  url.Values // the keys are the Param constants
	// Body is sent as LinesType if it is an io.Reader, and as JSON otherwise. The client closes an
	// io.Reader that is also an io.Closer. Nil sends no body.
	Body any
	// Timeout bounds the whole answer of Do; 0 means 30 seconds.
	Timeout time.Duration
}

// Path fills names into one of the path constants: each replaces the next word in braces.
func Path(path string, names ...string) string {
	for _, name := range names {
		before, after, _ := strings.Cut(path, "{")
		_, after, _ = strings.Cut(after, "}")
		path = before + url.PathEscape(name) + after
	}
	return path
}

// Do sends a request and decodes the answer. Its error, like that of Stream, Work and List, is an
// *Error if the server refused the request, or that of net/http if the server was not reached.
func Do[T any](ctx context.Context, c *Client, r Request) (out T, err error) {
	timeout := cmp.Or(r.Timeout, answerTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	body, err := c.Open(ctx, r)
	if err != nil {
		return out, err
	}
	defer body.Close()
	if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&out); err != nil {
		return out, cmp.Or(context.Cause(ctx), fmt.Errorf("reading the answer: %w", err))
	}
	return out, nil
}

// Pages yields the pages of a listing, up to the first error.
func Pages[T any](ctx context.Context, c *Client, listing string, query url.Values) iter.Seq2[Page[T], error] {
	return func(yield func(Page[T], error) bool) {
		asked := url.Values{ParamLimit: {strconv.Itoa(PageSize)}}
		maps.Copy(asked, query)
		for {
			page, err := Do[Page[T]](ctx, c, Request{Path: listing, Query: asked})
			if !yield(page, err) || err != nil || page.After == "" {
				return
			}
			asked.Set(ParamAfter, page.After)
		}
	}
}

// List yields the values of a listing, page after page, up to the first error.
func List[T any](ctx context.Context, c *Client, listing string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for page, err := range Pages[T](ctx, c, listing, query) {
			for _, v := range page.Items {
				if !yield(v, nil) {
					return
				}
			}
			if err != nil {
				var zero T
				yield(zero, err)
			}
		}
	}
}

// Stream yields the values of a stream. It ends with the first error: that of ctx, or ErrCutOff if
// the server ends its answer. If begun is not nil, Stream calls it when the answer begins.
func Stream[T any](ctx context.Context, c *Client, r Request, begun func()) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silence := time.AfterFunc(lineTimeout, func() { cancel(fmt.Errorf("no word from the server for %v", lineTimeout)) })
		defer silence.Stop()
		body, err := c.Open(ctx, r)
		if err != nil {
			yield(zero, err)
			return
		}
		defer body.Close()
		if begun != nil {
			begun()
		}
		scanner := bufio.NewScanner(body)
		scanner.Buffer(nil, maxLine)
		for scanner.Scan() {
			silence.Reset(lineTimeout)
			if len(scanner.Bytes()) == 0 {
				continue
			}
			var v T
			if err := json.Unmarshal(scanner.Bytes(), &v); err != nil {
				yield(zero, fmt.Errorf("reading the answer: %w", err))
				return
			}
			if !yield(v, nil) {
				return
			}
		}
		yield(zero, cmp.Or(context.Cause(ctx), scanner.Err(), ErrCutOff))
	}
}

// Work starts long work, and yields its progress up to the end, or the error of the work or Stream.
func Work(ctx context.Context, c *Client, r Request) iter.Seq2[Progress, error] {
	return func(yield func(Progress, error) bool) {
		for p, err := range Stream[Progress](ctx, c, r, nil) {
			if err == nil && p.Error != nil {
				err = p.Error
			}
			if !yield(p, err) || err != nil || p.Ended {
				return
			}
		}
	}
}

// Open sends a request and returns the body of a 2xx answer. The caller closes the body.
func (c *Client) Open(ctx context.Context, r Request) (io.ReadCloser, error) {
	body, contentType := io.Reader(nil), ""
	switch content := r.Body.(type) {
	case nil:
	case io.Reader:
		body, contentType = content, LinesType
	default:
		text, err := json.Marshal(content)
		if err != nil {
			return nil, err
		}
		body, contentType = bytes.NewReader(text), "application/json"
	}
	u := c.base.String() + r.Path
	if query := r.Query.Encode(); query != "" {
		u += "?" + query
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, u, body)
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok { // the error text contains the URL
			err = u.Err
		}
		return nil, cmp.Or(context.Cause(ctx), err)
	}
	if answer.StatusCode/100 == 2 {
		return answer.Body, nil
	}
	defer answer.Body.Close()
	refusal := new(Error)
	if json.NewDecoder(io.LimitReader(answer.Body, maxRefusal)).Decode(refusal) != nil || refusal.Code == "" {
		return nil, fmt.Errorf("%s answered %s, which is not an answer of an admin API", c.base.Host, answer.Status)
	}
	return nil, refusal
}

// Error returns the server's message, after the name of the field unless the message contains it.
func (e *Error) Error() string {
	if e.Field != "" && !strings.Contains(e.Message, e.Field) {
		return e.Field + ": " + e.Message
	}
	return e.Message
}
