package webhook

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// newResolver returns a resolver that gets the addresses of a name from answer. Each lookup of a
// name calls answer once for IPv4 and once for IPv6.
func newResolver(t *testing.T, answer func(name string) []netip.Addr) *net.Resolver {
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	return &net.Resolver{
		PreferGo: true,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			running.Go(func() {
				defer server.Close()
				for serveDNS(server, answer) == nil {
				}
			})
			return client, nil
		},
	}
}

// serveDNS reads one query from c and answers it, as a server of DNS over TCP (RFC 1035) does.
func serveDNS(c net.Conn, answer func(name string) []netip.Addr) error {
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return err
	}
	query := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(c, query); err != nil {
		return err
	}
	const header = 12
	var labels []string
	end := header
	for query[end] != 0 {
		n := int(query[end])
		labels = append(labels, string(query[end+1:end+1+n]))
		end += 1 + n
	}
	kind := binary.BigEndian.Uint16(query[end+1:])
	end += 1 + 4 // the end of the name, type and class
	reply := make([]byte, 2, 512)
	reply = append(reply, query[:2]...)                       // id
	reply = append(reply, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0) // an answer; one question
	reply = append(reply, query[header:end]...)               // the question
	for _, ip := range answer(strings.Join(labels, ".")) {
		const a, aaaa = 1, 28
		if kind == a != ip.Is4() || kind != a && kind != aaaa {
			continue
		}
		reply[2+7]++
		reply = append(reply, 0xc0, header, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(ip.BitLen()/8))
		reply = append(reply, ip.AsSlice()...)
	}
	binary.BigEndian.PutUint16(reply, uint16(len(reply)-2))
	_, err := c.Write(reply)
	return err
}
