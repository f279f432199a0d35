package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hookferry/analytics/cmd/hookferry/internal/api"
	"github.com/hookferry/analytics/signature"
)

const (
	// relayTimeout bounds one request to the URL in --to. It is longer than webhook.DefaultTimeout,
	// so that a developer can step through the receiver with a debugger.
	relayTimeout = 30 * time.Second

	// relayPause is how long a relay waits before it connects to the server again.
	relayPause = time.Second
)

// A relay posts the events that a remote server accepts, one after the other, to one URL. If the
// relay is too slow, the server leaves out events and says how many.
type relay struct {
	*printer
	to     *url.URL
	signer *signature.StandardSigner // nil without --standard-secret
	http   *http.Client
}

func newRelay(to string, p *printer) (*relay, error) {
	if to == "" {
		return nil, usagef("--to: want the URL to post webhooks to, such as localhost:3000/hook")
	}
	if !strings.Contains(to, "://") {
		to = "http://" + to
	}
	u, err := url.Parse(to)
	switch {
	case err != nil || u.Hostname() == "":
		return nil, usagef("--to: want a URL, or host:port and a path")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, usagef("--to: want http or https")
	case u.User != nil:
		return nil, usagef("--to: want a URL without a user")
	}
	r := &relay{printer: p, to: u, http: &http.Client{
		Transport: p.command.transport(),
		Timeout:   relayTimeout,
		// The server follows no redirects, either.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if len(p.standard) > 0 {
		if r.signer, err = signature.NewStandardSigner(p.standard...); err != nil {
			return nil, usagef(`--standard-secret: is not "whsec_" and the base64 of 24 to 64 bytes, nor "whsk_" and that of a private key`)
		}
	}
	return r, nil
}

// follow posts the events that the server accepts for the destination, until ctx is done. After the
// stream has begun once, follow reconnects when the server restarts.
func (r *relay) follow(ctx context.Context, destination string, announce io.Writer) error {
	defer r.http.CloseIdleConnections()
	// For an unknown destination, the server would send an empty stream instead of an error.
	if _, err := api.Do[api.Destination](ctx, r.command.client, api.Request{Path: api.Path(api.DestinationPath, destination)}); err != nil {
		return err
	}
	filter := url.Values{api.ParamKind: {"accepted"}, api.ParamDestination: {destination}}
	began := false
	begun := func() {
		if !began {
			fmt.Fprintf(announce, "posting what %s accepts for %s to %s\n", r.command.client.Host(), clean(destination), r.to.Scheme+"://"+r.to.Host+r.to.Path)
		}
		began = true
	}
	for {
		var ended error
		for live, err := range api.Stream[api.Live](ctx, r.command.client, api.Request{Path: api.LivePath, Query: filter}, begun) {
			ended = err
			if live.Skipped > 0 {
				fmt.Fprintln(r.command.stderr, counted(live.Skipped, "more event")+" left out: more happens than can be posted")
			}
			if live.Event != nil {
				filter.Set(api.ParamAfter, strconv.FormatUint(live.Event.Seq, 10))
				r.post(ctx, live.Event)
			}
		}
		var refused *api.Error
		switch {
		case ctx.Err() != nil:
			return nil
		case !began || errors.As(ended, &refused) && refused.Code != api.CodeUnavailable:
			return ended
		}
		fmt.Fprintf(r.command.stderr, "lost %s, trying again\n", r.command.client.Host())
		select {
		case <-time.After(relayPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// post posts one event and prints the answer.
func (r *relay) post(ctx context.Context, e *api.Event) {
	start := time.Now()
	answer, err := r.request(ctx, e)
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // without the URL, which was printed at the start
	}
	if err != nil {
		answer = "no answer: " + err.Error()
	}
	if ctx.Err() == nil {
		took := api.Milliseconds(time.Since(start))
		r.print(received{At: start, Answer: clean(answer) + " in " + millis(took)}, e.Body)
	}
}

// request posts one event to the URL in --to, and returns a description of the answer.
func (r *relay) request(ctx context.Context, e *api.Event) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.to.String(), bytes.NewReader(e.Body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "hookferry-listen/"+version())
	if len(r.secrets) > 0 {
		value, err := signature.Sign(e.Body, r.secrets[0])
		if err != nil {
			return "", err
		}
		request.Header.Set(signature.Header, value)
	}
	if r.signer != nil {
		now, id := time.Now(), webhookID(e.ID)
		request.Header.Set(signature.StandardID, id)
		request.Header.Set(signature.StandardTimestamp, strconv.FormatInt(now.Unix(), 10))
		request.Header.Set(signature.StandardSignature, string(r.signer.Append(nil, id, now, e.Body)))
	}
	response, err := r.http.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, maxPrinted))
	return "answered " + response.Status, err
}

// webhookID returns the webhook-id for an event: its id, escaped to visible ASCII without a full
// stop. For an event that comes from a source, the server itself sends a different webhook-id: a
// digest of the id and the source.
func webhookID(id string) string {
	return strings.ReplaceAll(url.PathEscape(id), ".", "%2E")
}
