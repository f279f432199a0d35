package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/hookferry/analytics"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
)

func send(c *command, message analytics.Message) action {
	readMessage := messageFlags(c, message)
	c.jsonFlag()
	endpoint := c.set.String("endpoint", analytics.DefaultEndpoint, "`URL` of the server")
	writeKey := c.set.String("write-key", "", "`key` of the source, or file:PATH; without it, the one that serve made up and keeps in the data folder")
	data := c.set.String("data", config.DefaultData, "data `folder` of serve, for its write key")
	timeout := c.duration("timeout", 10*time.Second, "`time` to try for")
	for _, name := range []string{"endpoint", "write-key", "data", "timeout"} {
		c.variable(name, nil)
	}
	return func(ctx context.Context) error {
		if err := readMessage(); err != nil {
			return err
		}
		if *writeKey == "" {
			var err error
			*writeKey, err = readWriteKey(*data)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return usagef("--write-key: want the key of the source; there is none in %s, where serve keeps the one it makes up", *data)
			case err != nil:
				return fmt.Errorf("--data: %w", err)
			}
		}
		key, err := config.ReadSecret(*writeKey)
		if err != nil {
			return fmt.Errorf("--write-key: %w", err)
		}
		client := analytics.New(key.Reveal())
		client.Endpoint = *endpoint
		return c.deliver(ctx, client, message, *timeout)
	}
}

// deliver sends one message with a client of its own, and prints its messageId once accepted.
func (c *command) deliver(ctx context.Context, client *analytics.Client, m analytics.Message, timeout time.Duration) error {
	transport := c.process.transport()
	defer transport.CloseIdleConnections()
	var outcome analytics.Delivery
	var sent struct {
		MessageID string `json:"messageId"`
	}
	client.FlushAt = 1
	client.Logger = slog.New(slog.DiscardHandler) // deliver prints the outcome
	client.Transport = &reportingTransport{transport, c.process.stderr}
	client.OnDelivery = func(d analytics.Delivery) {
		outcome = d
		for text := range d.Messages() {
			_ = json.Unmarshal(text, &sent) // the client wrote the message
		}
	}
	if err := inFlags(client.Enqueue(ctx, m)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := client.Shutdown(ctx) // nil, too, if the message was refused before this call
	var status *analytics.StatusError
	switch {
	case outcome.Reason == analytics.ReasonShutdown:
		return fmt.Errorf("not accepted within %v", timeout)
	case errors.As(outcome.Err, &status) && status.Code == http.StatusUnauthorized:
		return errors.New("not accepted: the server does not know the write key; see --write-key and --data")
	case outcome.Err != nil:
		return fmt.Errorf("not accepted: %w", outcome.Err)
	case err != nil:
		return err
	}
	return c.print(sent, "accepted %s", sent.MessageID)
}

// A reportingTransport reports on standard error each request that failed and will be repeated.
type reportingTransport struct {
	http.RoundTripper
	stderr io.Writer
}

func (t *reportingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	switch {
	case r.Context().Err() != nil:
	case err != nil:
		fmt.Fprintf(t.stderr, "hookferry send: %s; trying again\n", clean(err.Error()))
	case response.StatusCode == http.StatusTooManyRequests || response.StatusCode >= 500:
		fmt.Fprintf(t.stderr, "hookferry send: the server answered %s; trying again\n", clean(response.Status))
	}
	return response, err
}

var callTypes = []string{"track", "identify", "page", "screen", "group", "alias"}

// callFlags has the flags that describe a call, with the field of the message that each sets. If
// the field is a map, the flag may be repeated, and each value is key=value.
var callFlags = []struct{ name, field, usage string }{
	{"user", "UserId", "`id` of the user"},
	{"anonymous", "AnonymousId", "`id` of a user who is not known yet"},
	{"event", "Event", "`name` of what happened"},
	{"name", "Name", "`name` of the page or screen"},
	{"category", "Category", "`category` of the page"},
	{"group", "GroupId", "`id` of the group"},
	{"previous", "PreviousId", "`id` that the user had before"},
	{"timestamp", "Timestamp", "`time` when it happened, such as 2026-01-31T12:00:00Z; now if left out"},
	{"message-id", "MessageId", "`id` of the call: a second call with it is not forwarded; made up if left out"},
	{"property", "Properties", "`key=value`, with the value as JSON if it is JSON, else as text; may be repeated"},
	{"trait", "Traits", "`key=value` of the user or the group, as JSON if it is JSON, else as text; may be repeated"},
	{"context", "Context", "`key=value` of the call's context; may be repeated"},
	{"integration", "Integrations", "`name=true|false`, a destination switch, such as Webhooks=false; may be repeated"},
}

// messageFlags defines a flag for each field that message has. The result sets and checks them.
func messageFlags(c *command, message analytics.Message) func() error {
	fields := reflect.ValueOf(message).Elem()
	for _, f := range callFlags {
		field := fields.FieldByName(f.field)
		switch {
		// In a message with Properties, Traits is another name of Properties, which --property
		// sets.
		case !field.IsValid() || f.name == "trait" && fields.FieldByName("Properties").IsValid():
		case field.Kind() == reflect.String:
			c.set.StringVar(field.Addr().Interface().(*string), f.name, "", f.usage)
		default:
			c.set.StringArray(f.name, nil, f.usage)
		}
	}
	return func() error {
		for _, f := range callFlags {
			if field := fields.FieldByName(f.field); c.set.Lookup(f.name) != nil && field.Kind() == reflect.Map {
				m, err := readPairs(f.name, c.texts(f.name))
				if err != nil {
					return err
				}
				field.Set(reflect.ValueOf(m))
			}
		}
		return inFlags(message.Validate())
	}
}

// inFlags names the flag in an error about a field of a message or a setting of the client.
func inFlags(err error) error {
	if field, ok := errors.AsType[*analytics.FieldError](err); ok {
		return usagef("%s", fieldFlags.Replace(field.Field+" "+field.Problem))
	}
	if setting, ok := errors.AsType[*analytics.ConfigError](err); ok {
		return usagef("%s", fieldFlags.Replace(setting.Field+" "+setting.Problem))
	}
	return err
}

// fieldFlags replaces the names of fields by the names of their flags.
var fieldFlags = func() *strings.Replacer {
	pairs := []string{"Endpoint", "--endpoint", "write key", "--write-key"}
	for _, f := range callFlags {
		pairs = append(pairs, f.field, "--"+f.name)
	}
	return strings.NewReplacer(pairs...)
}()

// readPairs makes a map of key=value texts, or returns nil if there are none. A value that is not
// JSON becomes a string.
func readPairs(flag string, texts []string) (map[string]any, error) {
	var m map[string]any
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, usagef("--%s: %q is not of the form key=value", flag, text)
		}
		if _, twice := m[key]; twice {
			return nil, usagef("--%s: %q is given twice", flag, key)
		}
		if m == nil {
			m = map[string]any{}
		}
		m[key] = value
		if json.Valid([]byte(value)) {
			m[key] = json.RawMessage(value)
		}
	}
	return m, nil
}
