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
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// How long a Client waits: for a whole answer, for those of endpoints that are
// tested, and for the next line of a stream. A server says something every
// KeepAlive.
const (
	answerTimeout = 30 * time.Second
	testTimeout   = 5 * time.Minute
	eraseTimeout  = time.Hour // all of a store may be read
	lineTimeout   = 4 * KeepAlive
)

const (
	maxAnswer  = 64 << 20 // of an answer that is no stream
	maxLine    = 4 << 20  // of a line of a stream
	maxRefusal = 64 << 10 // of an answer that is an Error
	pageSize   = 500      // values of a listing asked for at a time
)

// ErrCutOff is of a stream that ended before it said so. What was done stays
// done.
var ErrCutOff = errors.New("the server ended its answer early; is it stopping?")

// A Client calls the admin API of one server. Its methods may be called at
// once. They return an *Error where the server refused, and what net/http
// returns where it was not reached.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
}

// NewClient returns a client of the server at base, a URL or host:port, which
// sends the token unless it is "". It makes its requests by transport; nil means one
// of its own.
func NewClient(base, token string, transport http.RoundTripper) (*Client, error) {
	u, err := ParseBase(base)
	if err != nil {
		return nil, err
	}
	if transport == nil {
		transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	return &Client{base: u, token: token, http: &http.Client{
		Transport: transport,
		// Another server would get the token, and a POST would become a GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// ParseBase returns the URL of a server that is given by it or by its host and port.
func ParseBase(base string) (*url.URL, error) {
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, errors.New("want a URL or host:port")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("has the scheme %q; http and https are allowed", u.Scheme)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("want a URL without user, query and fragment")
	}
	if u.Hostname() == "" { // of a listener on all addresses
		u.Host = "localhost:" + u.Port()
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

// Host is the server's host and port.
func (c *Client) Host() string { return c.base.Host }

// Close closes the connections that are idle.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status asks how the server is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return ask[Status](ctx, c, http.MethodGet, StatusPath, nil, nil)
}

// Nodes asks for the servers of the store.
func (c *Client) Nodes(ctx context.Context) (Nodes, error) {
	return ask[Nodes](ctx, c, http.MethodGet, NodesPath, nil, nil)
}

// Sources asks for the first sources with a part in their name, limit of them at
// most.
func (c *Client) Sources(ctx context.Context, part string, limit int) (Sources, error) {
	return ask[Sources](ctx, c, http.MethodGet, SourcesPath, paged(values(map[string]string{ParamQuery: part}), limit, ""), nil)
}

// AllSources asks for all sources, page by page.
func (c *Client) AllSources(ctx context.Context) iter.Seq2[Source, error] {
	return pages(ctx, c, SourcesPath, url.Values{}, func(p Sources) ([]Source, string) { return p.Sources, p.After })
}

// Destinations asks for a page of the destinations that the filter selects, of
// limit at most, behind the page that said after. "" is the first one.
func (c *Client) Destinations(ctx context.Context, filter DestinationFilter, limit int, after string) (Destinations, error) {
	return ask[Destinations](ctx, c, http.MethodGet, DestinationsPath, paged(filter.values(), limit, after), nil)
}

// AllDestinations is Destinations with all of them in one page.
func (c *Client) AllDestinations(ctx context.Context, filter DestinationFilter) (all Destinations, err error) {
	for page := (Destinations{}); ; {
		if page, err = c.Destinations(ctx, filter, pageSize, page.After); err != nil {
			return all, err
		}
		page.Destinations = append(all.Destinations, page.Destinations...)
		all = page
		if page.After == "" {
			return all, nil
		}
	}
}

// Destination asks for one of them.
func (c *Client) Destination(ctx context.Context, id string) (Destination, error) {
	return ask[Destination](ctx, c, http.MethodGet, fill(DestinationPath, "destination", id), nil, nil)
}

// EditDestination makes or replaces a destination with the method PUT, or changes the keys of
// document with PATCH, and says who does it.
func (c *Client) EditDestination(ctx context.Context, method, id, by string, document map[string]any) (Destination, error) {
	return ask[Destination](ctx, c, method, fill(DestinationPath, "destination", id), values(map[string]string{ParamBy: by}), document)
}

// DeleteDestination deletes a destination; waiting says what becomes of what waits for it.
func (c *Client) DeleteDestination(ctx context.Context, id, by, waiting string) (Changed, error) {
	query := values(map[string]string{ParamBy: by, ParamWaiting: waiting})
	return askWithin[Changed](ctx, eraseTimeout, c, http.MethodDelete, fill(DestinationPath, "destination", id), query, nil)
}

// AddSecret makes another secret for Standard Webhooks, and DropSecrets forgets all but the newest.
func (c *Client) AddSecret(ctx context.Context, id, by string) (NewSecret, error) {
	return ask[NewSecret](ctx, c, http.MethodPost, fill(SecretsPath, "destination", id), values(map[string]string{ParamBy: by}), nil)
}

// DropSecrets is explained at AddSecret.
func (c *Client) DropSecrets(ctx context.Context, id, by string) (Destination, error) {
	return ask[Destination](ctx, c, http.MethodDelete, fill(SecretsPath, "destination", id), values(map[string]string{ParamBy: by}), nil)
}

// Pause stops attempts for a destination.
func (c *Client) Pause(ctx context.Context, destination string) (Destination, error) {
	return ask[Destination](ctx, c, http.MethodPost, fill(PausePath, "destination", destination), nil, nil)
}

// Resume ends a pause.
func (c *Client) Resume(ctx context.Context, destination string) (Destination, error) {
	return ask[Destination](ctx, c, http.MethodPost, fill(ResumePath, "destination", destination), nil, nil)
}

// Live asks for what happens from now on to the deliveries that the filter
// selects, until ctx is done. It calls begun once nothing is missed any more.
func (c *Client) Live(ctx context.Context, filter url.Values, begun func()) iter.Seq2[Live, error] {
	return lines[Live](ctx, c, http.MethodGet, LivePath, filter, "", nil, begun)
}

// Waiting asks for what the filter selects of what waits, page by page.
func (c *Client) Waiting(ctx context.Context, filter WaitingFilter) iter.Seq2[WaitingDelivery, error] {
	return pages(ctx, c, WaitingPath, filter.values(), func(p Waiting) ([]WaitingDelivery, string) { return p.Waiting, p.After })
}

// RetryWaiting makes what the filter selects due now.
func (c *Client) RetryWaiting(ctx context.Context, filter WaitingFilter) (Changed, error) {
	return askWithin[Changed](ctx, eraseTimeout, c, http.MethodPost, WaitingRetryPath, nil, filter)
}

// DiscardWaiting forgets what the filter selects.
func (c *Client) DiscardWaiting(ctx context.Context, filter WaitingFilter) (Changed, error) {
	return askWithin[Changed](ctx, eraseTimeout, c, http.MethodPost, WaitingDiscardPath, nil, filter)
}

// Delivered asks for what was delivered, is kept and the filter selects, page by page.
func (c *Client) Delivered(ctx context.Context, filter DeliveredFilter) iter.Seq2[DeliveredDelivery, error] {
	return pages(ctx, c, DeliveredPath, filter.values(), func(p Delivered) ([]DeliveredDelivery, string) { return p.Delivered, p.After })
}

// Resend has what was delivered sent again, and tells how far it is, as Replay does.
func (c *Client) Resend(ctx context.Context, filter DeliveredFilter) iter.Seq2[Progress, error] {
	return progressOf(lines[Progress](ctx, c, http.MethodPost, ResendPath, nil, jsonType, encoded(filter), nil))
}

// Dead asks for the dead letters that the filter selects, page by page.
func (c *Client) Dead(ctx context.Context, filter DeadFilter) iter.Seq2[DeadLetter, error] {
	return pages(ctx, c, DeadPath, filter.values(), func(p Dead) ([]DeadLetter, string) { return p.Dead, p.After })
}

// CountDead asks how many dead letters the filter selects.
func (c *Client) CountDead(ctx context.Context, filter DeadFilter) (int, error) {
	a, err := ask[Count](ctx, c, http.MethodGet, DeadCountPath, filter.values(), nil)
	return a.Count, err
}

// DeadLetter asks for all of one dead letter.
func (c *Client) DeadLetter(ctx context.Context, key string) (DeadLetter, error) {
	return ask[DeadLetter](ctx, c, http.MethodGet, fill(DeadLetterPath, "key", key), nil, nil)
}

// Replay has dead letters delivered again, and tells how far it is. It ends
// with the loop, and with ctx.
func (c *Client) Replay(ctx context.Context, s Selection) iter.Seq2[Progress, error] {
	return progressOf(lines[Progress](ctx, c, http.MethodPost, ReplayPath, nil, jsonType, encoded(s), nil))
}

// Discard removes dead letters, as Replay does with them.
func (c *Client) Discard(ctx context.Context, s Selection) iter.Seq2[Progress, error] {
	return progressOf(lines[Progress](ctx, c, http.MethodPost, DiscardPath, nil, jsonType, encoded(s), nil))
}

// Test has a sample of calls sent now, past the queue.
func (c *Client) Test(ctx context.Context, r TestRequest) (TestResult, error) {
	return askWithin[TestResult](ctx, testTimeout, c, http.MethodPost, TestPath, nil, r)
}

// Erase removes what is stored of a user.
func (c *Client) Erase(ctx context.Context, user string) (Erased, error) {
	return askWithin[Erased](ctx, eraseTimeout, c, http.MethodPost, ErasuresPath, nil, Erasure{user})
}

// Delete tells destinations to delete users.
func (c *Client) Delete(ctx context.Context, d Deletion) iter.Seq2[Progress, error] {
	return progressOf(lines[Progress](ctx, c, http.MethodPost, DeletionsPath, nil, jsonType, encoded(d), nil))
}

// DeleteLines is Delete for any number of users, one a line. The d.Users are
// left out of account. It closes users if that is an io.Closer.
func (c *Client) DeleteLines(ctx context.Context, d Deletion, users io.Reader) iter.Seq2[Progress, error] {
	query := url.Values{}
	if d.ID != "" {
		query.Set(ParamID, d.ID)
	}
	for _, s := range d.Sources {
		query.Add(ParamSource, s)
	}
	return progressOf(lines[Progress](ctx, c, http.MethodPost, DeletionsPath, query, LinesType, users, nil))
}

// Audiences asks for the first audiences that the filter selects, limit of them at
// most.
func (c *Client) Audiences(ctx context.Context, filter AudienceFilter, limit int) (Audiences, error) {
	return ask[Audiences](ctx, c, http.MethodGet, AudiencesPath, paged(filter.values(), limit, ""), nil)
}

// AllAudiences asks for the audiences that the filter selects, page by page.
func (c *Client) AllAudiences(ctx context.Context, filter AudienceFilter) iter.Seq2[Audience, error] {
	return pages(ctx, c, AudiencesPath, filter.values(), func(p Audiences) ([]Audience, string) { return p.Audiences, p.After })
}

// CreateAudience registers an audience.
func (c *Client) CreateAudience(ctx context.Context, a Audience) (Audience, error) {
	return ask[Audience](ctx, c, http.MethodPost, AudiencesPath, nil, a)
}

// SyncAudience makes the members of an audience those given, one a line, and
// tells its destination of the changes. It closes members if that is an
// io.Closer.
func (c *Client) SyncAudience(ctx context.Context, destination, audience string, members io.Reader) iter.Seq2[Progress, error] {
	path := fill(MembersPath, "destination", destination, "audience", audience)
	return progressOf(lines[Progress](ctx, c, http.MethodPut, path, nil, LinesType, members, nil))
}

// Members asks for the members of an audience, one a line. The caller closes
// them.
func (c *Client) Members(ctx context.Context, destination, audience string) (io.ReadCloser, error) {
	path := fill(MembersPath, "destination", destination, "audience", audience)
	r, err := c.do(ctx, http.MethodGet, path, nil, "", nil)
	if err != nil {
		return nil, err
	}
	return r.Body, nil
}

const jsonType = "application/json"

// fill puts names and their values into a path.
func fill(path string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		path = strings.Replace(path, "{"+pairs[i]+"}", url.PathEscape(pairs[i+1]), 1)
	}
	return path
}

// values are the parameters that are not empty.
func values(of map[string]string) url.Values {
	v := url.Values{}
	for name, value := range of {
		if value != "" {
			v.Set(name, value)
		}
	}
	return v
}

// paged returns query with what says which page of a listing is wanted.
func paged(query url.Values, limit int, after string) url.Values {
	query.Set(ParamLimit, strconv.Itoa(limit))
	query.Del(ParamAfter)
	if after != "" {
		query.Set(ParamAfter, after)
	}
	return query
}

func (f AudienceFilter) values() url.Values {
	return values(map[string]string{ParamDestination: f.Destination, ParamQuery: f.Query})
}

func (f DestinationFilter) values() url.Values {
	v := values(map[string]string{ParamQuery: f.Query, ParamSource: f.Source, ParamSort: f.Sort})
	for _, s := range f.States {
		v.Add(ParamState, s)
	}
	return v
}

func (f WaitingFilter) values() url.Values {
	return values(map[string]string{ParamDestination: f.Destination, ParamID: f.ID, ParamUser: f.User, ParamEvent: f.Event})
}

func (f DeliveredFilter) values() url.Values {
	return within(values(map[string]string{ParamDestination: f.Destination, ParamID: f.ID, ParamUser: f.User}), f.From, f.To)
}

func (f DeadFilter) values() url.Values {
	v := values(map[string]string{ParamDestination: f.Destination, ParamID: f.ID, ParamType: f.Type, ParamReason: f.Reason, ParamUser: f.User, ParamOrder: f.Order})
	return within(v, f.From, f.To)
}

// within adds the bounds of a time that are not nil.
func within(v url.Values, from, to *time.Time) url.Values {
	for name, t := range map[string]*time.Time{ParamFrom: from, ParamTo: to} {
		if t != nil {
			v.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	return v
}

// encoded is a body of JSON. What is sent has only fields that encode.
func encoded(v any) io.Reader {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return bytes.NewReader(b)
}

// ask sends in, if it is not nil, and decodes the answer.
func ask[T any](ctx context.Context, c *Client, method, path string, query url.Values, in any) (out T, err error) {
	return askWithin[T](ctx, answerTimeout, c, method, path, query, in)
}

func askWithin[T any](ctx context.Context, timeout time.Duration, c *Client, method, path string, query url.Values, in any) (out T, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout))
	defer cancel()
	contentType, body := "", io.Reader(nil)
	if in != nil {
		contentType, body = jsonType, encoded(in)
	}
	r, err := c.do(ctx, method, path, query, contentType, body)
	if err != nil {
		return out, cmp.Or(causeOf(ctx), err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(io.LimitReader(r.Body, maxAnswer)).Decode(&out); err != nil {
		return out, cmp.Or(causeOf(ctx), fmt.Errorf("reading the answer: %w", err))
	}
	return out, nil
}

// pages yields the values of a listing, page by page; of takes them and the After
// out of a page. An error ends it.
func pages[P, T any](ctx context.Context, c *Client, path string, query url.Values, of func(P) (list []T, after string)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after := ""; ; {
			page, err := ask[P](ctx, c, http.MethodGet, path, paged(query, pageSize, after), nil)
			if err != nil {
				var zero T
				yield(zero, err)
				return
			}
			var list []T
			list, after = of(page)
			for _, v := range list {
				if !yield(v, nil) {
					return
				}
			}
			if after == "" {
				return
			}
		}
	}
}

// lines yields the values of a stream until it ends. An error ends it. It calls
// begun, unless that is nil, when the server has begun to answer.
func lines[T any](ctx context.Context, c *Client, method, path string, query url.Values, contentType string, body io.Reader, begun func()) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		silence := time.AfterFunc(lineTimeout, func() { cancel(fmt.Errorf("no word from the server for %v", lineTimeout)) })
		defer silence.Stop()
		r, err := c.do(ctx, method, path, query, contentType, body)
		if err != nil {
			yield(zero, cmp.Or(causeOf(ctx), err))
			return
		}
		defer r.Body.Close()
		if begun != nil {
			begun()
		}
		scanner := bufio.NewScanner(r.Body)
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
		if err := scanner.Err(); err != nil {
			yield(zero, cmp.Or(causeOf(ctx), err))
		}
	}
}

// causeOf is why ctx is done, nil if it is not.
func causeOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// progressOf makes errors of what the stream of long work says went wrong.
func progressOf(stream iter.Seq2[Progress, error]) iter.Seq2[Progress, error] {
	return func(yield func(Progress, error) bool) {
		for p, err := range stream {
			switch {
			case err != nil:
				yield(p, err)
				return
			case p.Error != nil:
				yield(p, p.Error)
				return
			case !yield(p, nil) || p.Ended:
				return
			}
		}
		yield(Progress{}, ErrCutOff)
	}
}

// do sends a request and returns an answer that is 2xx.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, contentType string, body io.Reader) (*http.Response, error) {
	u := c.base.String() + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // it repeats the URL
			err = u.Err
		}
		return nil, err
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	refusal := new(Error)
	if json.NewDecoder(io.LimitReader(answer.Body, maxRefusal)).Decode(refusal) != nil || refusal.Code == "" {
		return nil, fmt.Errorf("%s answered %s, not as an admin API does", c.base.Host, answer.Status)
	}
	return nil, refusal
}

// Error is what the server said.
func (e *Error) Error() string {
	if e.Field != "" && !strings.Contains(e.Message, e.Field) {
		return e.Field + ": " + e.Message
	}
	return e.Message
}
