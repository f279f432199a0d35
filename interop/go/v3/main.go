// Command v3 is a typical program for github.com/segmentio/analytics-go/v3. It uses
// everything that the package exports, and sends to the collector at ENDPOINT. It prints
// the errors and outcomes that the client reports.
//
// The test also builds the program with analyticsv3 in place of the imported package. It
// changes nothing else.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/analytics-go/v3"
)

// at is the time in all messages that set a time.
var at = time.Date(2026, 3, 4, 5, 6, 7, 891e6, time.FixedZone("CET", 3600))

// outcomes is a Callback that counts successes by type and records failures.
type outcomes struct {
	mu     sync.Mutex
	ok     map[string]int
	failed []string
}

func (o *outcomes) Success(m analytics.Message) { o.note(m, nil) }

func (o *outcomes) Failure(m analytics.Message, err error) { o.note(m, err) }

func (o *outcomes) note(m analytics.Message, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kind, id := "", ""
	switch m := m.(type) {
	case analytics.Identify:
		kind, id = m.Type, m.MessageId
	case analytics.Track:
		kind, id = m.Type, m.MessageId
		if n, ok := m.Properties["items"].(int); ok {
			kind += fmt.Sprintf(" of %d items", n)
		}
	case analytics.Page:
		kind, id = m.Type, m.MessageId
	case analytics.Screen:
		kind, id = m.Type, m.MessageId
	case analytics.Group:
		kind, id = m.Type, m.MessageId
	case analytics.Alias:
		kind, id = m.Type, m.MessageId
	}
	switch {
	case id == "":
		o.failed = append(o.failed, fmt.Sprintf("%T without an id", m))
	case err == nil:
		o.ok[kind]++
	default:
		o.failed = append(o.failed, fmt.Sprintf("%s too big %t", kind, err == analytics.ErrMessageTooBig))
	}
}

// quiet is a Logger that discards everything.
type quiet struct{}

func (quiet) Logf(string, ...interface{})   {}
func (quiet) Errorf(string, ...interface{}) {}

// custom is a message of a type that no client accepts.
type custom struct{}

func (custom) Validate() error { return nil }

// fields is a FieldGetter on a map.
type fields map[string]interface{}

func (f fields) GetField(name string) (interface{}, bool) {
	v, ok := f[name]
	return v, ok
}

func main() {
	for _, config := range []analytics.Config{{Interval: -time.Second}, {BatchSize: -1}} {
		client, err := analytics.NewWithConfig("k", config)
		var refused analytics.ConfigError
		fmt.Println(client == nil, errors.As(err, &refused), err, refused)
	}
	told := &outcomes{ok: map[string]int{}}
	client, err := analytics.NewWithConfig("write-key", analytics.Config{
		Endpoint:  os.Getenv("ENDPOINT"),
		Interval:  time.Hour,
		BatchSize: analytics.DefaultBatchSize,
		Transport: http.DefaultTransport,
		Logger:    analytics.StdLogger(log.New(io.Discard, "", 0)),
		Callback:  told,
		Verbose:   true,
		DefaultContext: &analytics.Context{
			App:    analytics.AppInfo{Name: "shop", Version: "1.2", Build: "77", Namespace: "example.shop"},
			Locale: "nb-NO",
			Extra:  map[string]interface{}{"region": "north"},
		},
		RetryAfter: func(int) time.Duration { return time.Second },
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range append(messages(), malformed()...) {
		if err := client.Enqueue(m); err != nil {
			var field analytics.FieldError
			if errors.As(err, &field) {
				fmt.Printf("%T: %v %#v\n", m, err, field.Value)
			} else {
				fmt.Printf("%T refused\n", m)
			}
		}
	}
	fmt.Println(client.Close(), client.Close() == analytics.ErrClosed)
	fmt.Println(client.Enqueue(analytics.Track{UserId: "u", Event: "Late"}) == analytics.ErrClosed)
	fmt.Println(told.ok, told.failed)

	// The callback gets the error for a message that is too large.
	client, err = analytics.NewWithConfig("write-key", analytics.Config{Endpoint: os.Getenv("ENDPOINT"), Callback: told, Logger: quiet{}})
	if err != nil {
		log.Fatal(err)
	}
	_ = client.Enqueue(analytics.Track{UserId: "u", Event: "Large", Properties: analytics.NewProperties().Set("text", strings.Repeat("x", 40000))})
	_ = client.Enqueue(analytics.Track{UserId: "u", Event: "No JSON", Properties: analytics.NewProperties().Set("f", func() {})})
	fmt.Println(client.Close(), told.failed)

	for _, f := range []fields{
		{}, {"type": "walk"}, {"type": "identify"}, {"type": "track", "userId": "u"}, {"type": "page", "anonymousId": "a"},
		{"type": "screen", "userId": 7}, {"type": "group", "groupId": "g"}, {"type": "alias", "userId": "u"},
		{"type": "alias", "userId": "u", "previousId": "p"},
	} {
		fmt.Println(analytics.ValidateFields(f))
	}
	for _, c := range []analytics.Client{client, analytics.New("write-key")} {
		_ = c.Close()
	}
}

func messages() []analytics.Message {
	return []analytics.Message{
		analytics.Identify{
			UserId: "019mr8mf4r",
			Traits: analytics.NewTraits().SetName("Michael Bolton").SetEmail("mbolton@example.com").Set("plan", "Enterprise").Set("friends", 42),
		},
		analytics.Track{
			UserId:     "f4ca124298",
			Event:      "Signed Up",
			Properties: analytics.NewProperties().Set("plan", "Enterprise").Set("items", 3),
		},
		analytics.Page{
			UserId:     "f4ca124298",
			Name:       "Go Library",
			Properties: analytics.NewProperties().SetURL("https://example.com/docs/go"),
		},
		analytics.Screen{UserId: "f4ca124298", Name: "Go Library", Properties: analytics.NewProperties().SetCategory("docs")},
		analytics.Group{
			UserId:  "019mr8mf4r",
			GroupId: "56",
			Traits:  map[string]interface{}{"name": "Initech", "employees": 100, "list": []interface{}{1, "two", nil, map[string]interface{}{"three": 3.5}}},
		},
		analytics.Alias{PreviousId: "anonymousUser", UserId: "019mr8mf4r"},
		analytics.Track{
			AnonymousId: "48d213bb", UserId: "019mr8mf4r", MessageId: "order-1", Timestamp: at, Event: "Order <Completed> & paid   ☃",
			Properties: analytics.NewProperties().SetCategory("c").SetCoupon("c").SetCurrency("EUR").SetDiscount(1.5).SetName("n").
				SetOrderId("o").SetPath("p").SetPrice(2).SetProductId("pid").SetReferrer("r").SetRepeat(true).SetRevenue(39.95).SetSKU("sku").
				SetShipping(2).SetSubtotal(3).SetTax(4).SetTitle("t").SetTotal(5).SetURL("u").SetValue(6).
				SetProducts(analytics.Product{ID: "1", SKU: "s-1", Name: "Socks", Price: 9.5}, analytics.Product{}),
			Integrations: analytics.NewIntegrations().EnableAll().Disable("Salesforce").Enable("Webhooks").Set("Options", map[string]interface{}{"a": 1}),
		},
		&analytics.Identify{
			AnonymousId: "48d213bb",
			Traits: analytics.NewTraits().SetAddress("a").SetAge(41).SetAvatar("a").SetBirthday(at).SetCreatedAt(at).SetDescription("d").
				SetEmail("e").SetFirstName("f").SetGender("g").SetLastName("l").SetName("n").SetPhone("p").SetTitle("t").SetUsername("u").SetWebsite("w"),
			Integrations: analytics.NewIntegrations().DisableAll(),
		},
		&analytics.Track{
			UserId: "u", Event: "Context",
			Context: &analytics.Context{
				App:       analytics.AppInfo{Name: "other"},
				Campaign:  analytics.CampaignInfo{Name: "n", Source: "s", Medium: "m", Term: "t", Content: "c"},
				Device:    analytics.DeviceInfo{Id: "i", Manufacturer: "m", Model: "m", Name: "n", Type: "t", Version: "v", AdvertisingID: "ad"},
				Library:   analytics.LibraryInfo{Name: "own", Version: "1"},
				Location:  analytics.LocationInfo{City: "Oslo", Country: "NO", Region: "r", Latitude: 59.9, Longitude: 10.7, Speed: 1},
				Network:   analytics.NetworkInfo{Bluetooth: true, Cellular: true, WIFI: true, Carrier: "c"},
				OS:        analytics.OSInfo{Name: "n", Version: "v"},
				Page:      analytics.PageInfo{Hash: "h", Path: "p", Referrer: "r", Search: "s", Title: "t", URL: "u"},
				Referrer:  analytics.ReferrerInfo{Type: "t", Name: "n", URL: "u", Link: "l"},
				Screen:    analytics.ScreenInfo{Density: 2, Width: 3, Height: 4},
				IP:        net.IPv4(192, 0, 2, 1),
				Direct:    true,
				GroupID:   "g",
				Timezone:  "Europe/Oslo",
				UserAgent: "ua",
				Traits:    analytics.NewTraits().SetAge(3),
				Extra:     map[string]interface{}{"timezone": "below the field", "active": true},
			},
		},
		&analytics.Page{AnonymousId: "a", Context: &analytics.Context{IP: net.ParseIP("2001:db8::1")}},
		&analytics.Screen{AnonymousId: "a", Timestamp: at},
		&analytics.Group{AnonymousId: "a", GroupId: "g", MessageId: "group-1"},
		&analytics.Alias{Type: "overwritten", PreviousId: "p", UserId: "u"},
		analytics.Track{UserId: "u", Event: "Numbers", Properties: analytics.Properties{
			"big": 1e21, "small": 1e-7, "int": int64(1) << 60, "uint8": uint8(7), "bytes": []byte("abc"), "duration": time.Second, "nil": nil, "empty": map[string]int{},
		}},
	}
}

func malformed() []analytics.Message {
	return []analytics.Message{
		analytics.Track{}, analytics.Track{UserId: "u"}, analytics.Track{Event: "e"},
		analytics.Identify{}, analytics.Page{}, analytics.Screen{},
		analytics.Group{}, analytics.Group{GroupId: "g"}, &analytics.Group{UserId: "u"},
		analytics.Alias{}, analytics.Alias{UserId: "u"}, &analytics.Alias{PreviousId: "p"},
		custom{},
	}
}
