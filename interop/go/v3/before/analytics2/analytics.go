// Package analytics has the exported names of github.com/segmentio/analytics-go v2.1.1,
// as its public source declares them, and does nothing. That version predates Go modules.
// So the tests compile the code of the migration guide with this package instead of
// v2.1.1.
package analytics

import (
	"log"
	"net/http"
	"time"
)

// Backo stands for the retry policy, which v2.1.1 exports as a variable.
var Backo any

// DefaultContext is the context of batches.
var DefaultContext = map[string]any{}

// Message has the fields that all messages share.
type Message struct {
	Type      string
	MessageId string
	Timestamp string
	SentAt    string
}

// Identify is a message.
type Identify struct {
	Context      map[string]any
	Integrations map[string]any
	Traits       map[string]any
	AnonymousId  string
	UserId       string
	Message
}

// Group is a message.
type Group struct {
	Context      map[string]any
	Integrations map[string]any
	Traits       map[string]any
	AnonymousId  string
	UserId       string
	GroupId      string
	Message
}

// Track is a message.
type Track struct {
	Context      map[string]any
	Integrations map[string]any
	Properties   map[string]any
	AnonymousId  string
	UserId       string
	Event        string
	Message
}

// Page is a message.
type Page struct {
	Context      map[string]any
	Integrations map[string]any
	Traits       map[string]any
	AnonymousId  string
	UserId       string
	Category     string
	Name         string
	Message
}

// Alias is a message.
type Alias struct {
	PreviousId string
	UserId     string
	Message
}

// Client has the fields of the client.
type Client struct {
	Endpoint string
	Interval time.Duration
	Size     int
	Logger   *log.Logger
	Verbose  bool
	Client   http.Client
}

// New returns a client.
func New(string) *Client { return &Client{} }

// Identify does nothing.
func (*Client) Identify(*Identify) error { return nil }

// Group does nothing.
func (*Client) Group(*Group) error { return nil }

// Track does nothing.
func (*Client) Track(*Track) error { return nil }

// Page does nothing.
func (*Client) Page(*Page) error { return nil }

// Alias does nothing.
func (*Client) Alias(*Alias) error { return nil }

// Close does nothing.
func (*Client) Close() error { return nil }
