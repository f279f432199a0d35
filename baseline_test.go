package analytics

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"
)

// A baseline does the least work that a client has to do. The benchmarks compare the Client with
// it. A baseline encodes messages by hand into a buffer that it reuses, appends them to a batch
// under one mutex, and posts full batches. It has no errors, limits, retries, counts or
// flushing, and knows only the types of tenProperties. TestBaselinesWriteTheSameAsAClient checks
// its output, so it has to escape strings, too. It shares no code with the Client.
//
// There are two baselines. The baseline x_baseline accepts any map, as a client must, but writes the
// members in the random order of the map. So the time to sort members counts against the
// Client. The baseline x_shape knows the keys and the types in advance, which is impossible for
// a client that accepts maps. It looks the members up one by one, with their names as literals.
type baseline struct {
	encode func(f *baseline, dst []byte, m map[string]any) []byte

	userID, event string
	props         map[string]any

	scratch []byte

	mu    sync.Mutex
	batch []byte
}

func newBaseline(encode func(*baseline, []byte, map[string]any) []byte) *baseline {
	return &baseline{
		encode: encode,
		userID: "u-2041", event: "Order Completed", props: tenProperties(),
		scratch: make([]byte, 0, 1<<10),
		batch:   make([]byte, 0, MaxBatchSize),
	}
}

func (f *baseline) track() {
	message := f.message(f.scratch[:0])
	f.mu.Lock()
	if len(f.batch)+len(message)+1 > MaxBatchSize {
		post(f.batch)
		f.batch = f.batch[:0]
	}
	f.batch = append(f.batch, message...)
	f.batch = append(f.batch, ',')
	f.mu.Unlock()
}

// post posts a batch to a transport that discards it.
func post(batch []byte) {
	req, err := http.NewRequest("POST", "http://localhost/", bytes.NewReader(batch))
	if err != nil {
		panic(err)
	}
	discard{}.RoundTrip(req)
}

func (f *baseline) message(dst []byte) []byte {
	dst = append(dst, `{"type":"track","messageId":"`...)
	dst = floorID(dst)
	dst = append(dst, `","timestamp":`...)
	dst = floorTime(dst, time.Now())
	dst = append(dst, `,"userId":`...)
	dst = floorString(dst, f.userID)
	dst = append(dst, `,"event":`...)
	dst = floorString(dst, f.event)
	dst = append(dst, `,"properties":`...)
	return append(f.encode(f, dst, f.props), '}')
}

// anyMap encodes the members of m in the order of iteration.
func (f *baseline) anyMap(dst []byte, m map[string]any) []byte {
	sep := byte('{')
	for k, v := range m {
		dst = floorString(append(dst, sep), k)
		dst = append(dst, ':')
		sep = ','
		switch v := v.(type) {
		case string:
			dst = floorString(dst, v)
		case float64:
			dst = strconv.AppendFloat(dst, v, 'f', -1, 64)
		case int:
			dst = strconv.AppendInt(dst, int64(v), 10)
		case int64:
			dst = strconv.AppendInt(dst, v, 10)
		case bool:
			dst = strconv.AppendBool(dst, v)
		case nil:
			dst = append(dst, "null"...)
		case time.Time:
			dst = floorTime(dst, v)
		case []string:
			dst = floorStrings(dst, v)
		case map[string]any:
			dst = f.anyMap(dst, v)
		}
	}
	return append(dst, '}')
}

// tenMap encodes tenProperties.
func (f *baseline) tenMap(dst []byte, m map[string]any) []byte {
	dst = append(dst, `{"coupon":`...)
	if m["coupon"] == nil {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"currency":`...)
	dst = floorString(dst, m["currency"].(string))
	dst = append(dst, `,"customer":`...)
	dst = strconv.AppendInt(dst, m["customer"].(int64), 10)
	dst = append(dst, `,"express":`...)
	dst = strconv.AppendBool(dst, m["express"].(bool))
	dst = append(dst, `,"items":`...)
	dst = strconv.AppendInt(dst, int64(m["items"].(int)), 10)
	dst = append(dst, `,"order_id":`...)
	dst = floorString(dst, m["order_id"].(string))
	dst = append(dst, `,"placed":`...)
	dst = floorTime(dst, m["placed"].(time.Time))
	dst = append(dst, `,"shipping":`...)
	shipping := m["shipping"].(map[string]any)
	dst = append(dst, `{"city":`...)
	dst = floorString(dst, shipping["city"].(string))
	dst = append(dst, `,"zip":`...)
	dst = floorString(dst, shipping["zip"].(string))
	dst = append(dst, `},"tags":`...)
	dst = floorStrings(dst, m["tags"].([]string))
	dst = append(dst, `,"total":`...)
	dst = strconv.AppendFloat(dst, m["total"].(float64), 'f', -1, 64)
	return append(dst, '}')
}

func floorStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = floorString(dst, s)
	}
	return append(dst, ']')
}

// floorString copies s and then checks the copy, eight bytes at a time and the last bytes one
// by one. Only strings that need an escape or are not plain ASCII take the slow path.
func floorString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := len(dst)
	dst = append(dst, s...)
	rest := dst[start:]
	const ones = 0x0101010101010101
	special := uint64(0)
	for len(rest) >= 8 {
		w := binary.LittleEndian.Uint64(rest)
		special |= w | (w - ones*' ') | ((w ^ ones*'"') - ones) | ((w ^ ones*'\\') - ones)
		rest = rest[8:]
	}
	odd := special&(ones<<7) != 0
	for _, c := range rest {
		odd = odd || c < ' ' || c > '~' || c == '"' || c == '\\'
	}
	if odd {
		return floorEscape(dst[:start], s)
	}
	return append(dst, '"')
}

// floorEscape appends the string s and its closing quote. It is the slow path of floorString.
func floorEscape(dst []byte, s string) []byte {
	for _, r := range s { // invalid UTF-8 becomes U+FFFD
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			i := bytes.IndexByte([]byte("\b\f\n\r\t"), byte(r))
			if i >= 0 {
				dst = append(dst, '\\', "bfnrt"[i])
				continue
			}
			dst = append(dst, `\u00`...)
			dst = append(dst, floorHex[2*r:2*r+2]...)
		default:
			dst = append(dst, string(r)...)
		}
	}
	return append(dst, '"')
}

// floorTime writes t in UTC, in quotes.
func floorTime(dst []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	milli := t.Nanosecond() / 1e6
	const two = floorDecimal
	return append(dst, '"',
		two[year/100*2], two[year/100*2+1], two[year%100*2], two[year%100*2+1], '-',
		two[month*2], two[month*2+1], '-', two[day*2], two[day*2+1], 'T',
		two[hour*2], two[hour*2+1], ':', two[minute*2], two[minute*2+1], ':', two[second*2], two[second*2+1], '.',
		'0'+byte(milli/100), two[milli%100*2], two[milli%100*2+1], 'Z', '"')
}

// floorDecimal has the two decimal digits of each number up to 99. floorHex has the two
// hexadecimal digits of each byte.
const floorDecimal = "0001020304050607080910111213141516171819" +
	"2021222324252627282930313233343536373839" +
	"4041424344454647484950515253545556575859" +
	"6061626364656667686970717273747576777879" +
	"8081828384858687888990919293949596979899"

var floorHex = func() (table [512]byte) {
	for i := range 256 {
		copy(table[2*i:], strconv.AppendInt(nil, 0x100+int64(i), 16)[1:])
	}
	return table
}()

// floorID writes a random UUID, version 4.
func floorID(dst []byte) []byte {
	var id [16]byte
	binary.LittleEndian.PutUint64(id[:], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	id[6] = id[6]&15 | 0x40
	id[8] = id[8]&63 | 0x80
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, floorHex[2*int(b)], floorHex[2*int(b)+1])
	}
	return dst
}

// The baselines write the same as a Client, except for the id, the time and, for x_baseline, the
// order of the members.
func TestBaselinesWriteTheSameAsAClient(t *testing.T) {
	varying := regexp.MustCompile(`"messageId":"[0-9a-f-]{36}","timestamp":"[0-9T:.-]{23}Z"`)
	fixed := []byte(`"messageId":"","timestamp":""`)
	for _, text := range []string{"ord_4f8b2c9e", "", "seven77", "a\"quote", "back\\slash in it", "a\nline\x01", "Grüße", "\x7f", "\xff", "<&>\u2028"} {
		message := func(encode func(*baseline, []byte, map[string]any) []byte) []byte {
			f := newBaseline(encode)
			f.userID, f.props["order_id"] = "u"+text, text
			return f.message(nil)
		}
		props := tenProperties()
		props["order_id"] = text
		want, err := (&Track{UserId: "u" + text, Event: "Order Completed", Properties: props}).AppendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		anyMap, tenMap := message((*baseline).anyMap), message((*baseline).tenMap)
		for _, m := range []*[]byte{&want, &anyMap, &tenMap} {
			if !varying.Match(*m) {
				t.Fatalf("no id and time in %s", *m)
			}
			*m = varying.ReplaceAll(*m, fixed)
		}
		if !bytes.Equal(tenMap, want) {
			t.Errorf("%q: the baseline x_shape writes\n%s\nwant, as the client writes,\n%s", text, tenMap, want)
		}
		var got, wanted any
		if err := errors.Join(json.Unmarshal(anyMap, &got), json.Unmarshal(want, &wanted)); err != nil {
			t.Fatal(err)
		}
		if len(anyMap) != len(want) || !reflect.DeepEqual(got, wanted) {
			t.Errorf("%q: the baseline x_baseline writes\n%s\nwant, as the client writes in another order,\n%s", text, anyMap, want)
		}
	}
}
