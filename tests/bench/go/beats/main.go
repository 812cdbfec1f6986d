// Heartbeats of many pods for some seconds, each pod waiting for its answer before it beats again: on a TLS
// connection of its own that it keeps, or on a new one each. Prints one JSON object: count, per_s, p50_ms,
// p99_ms, and the CPU time of this program in cpu_s. A line of -tokens is a pod's token.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

var (
	address = flag.String("address", "", "HOST:PORT")
	ca      = flag.String("ca", "", "PEM bundle to trust")
	tokens  = flag.String("tokens", "", "file with a token a line")
	boot    = flag.String("boot", "bench", "the run of the sidecars; a new one begins to count anew")
	devices = flag.String("devices", "[]", "the figures that each beat carries, as JSON")
	seconds = flag.Float64("seconds", 10, "how long")
	kept    = flag.Bool("kept", true, "keep the connections")
)

type pod struct {
	token    string
	sequence int
	config   *tls.Config
	conn     *tls.Conn
	answers  *bufio.Reader
}

// beat posts one heartbeat; a timekeeper that has just begun may need some tries.
func (p *pod) beat(tries int) {
	if p.conn == nil {
		conn, err := tls.Dial("tcp", *address, p.config)
		check(err)
		p.conn, p.answers = conn, bufio.NewReader(conn)
	}
	p.sequence++
	body := fmt.Sprintf(`{"version":1,"boot":"%s","sequence":%d,"beats":[{"age_ms":0,"devices":%s}]}`,
		*boot, p.sequence, *devices)
	_, err := fmt.Fprintf(p.conn, "POST /v1/heartbeats HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", *address, p.token, len(body), body)
	check(err)
	answer, err := http.ReadResponse(p.answers, nil)
	check(err)
	text, err := io.ReadAll(answer.Body)
	check(err)
	if !*kept || answer.Close {
		p.conn.Close()
		p.conn = nil
	}
	switch {
	case answer.StatusCode == 200:
	case tries > 1:
		time.Sleep(500 * time.Millisecond)
		p.beat(tries - 1)
	default:
		log.Fatalf("answered with %d: %.400s", answer.StatusCode, text)
	}
}

func main() {
	flag.Parse()
	bundle, err := os.ReadFile(*ca)
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(bundle)
	listed, err := os.ReadFile(*tokens)
	check(err)
	lines := strings.Fields(string(listed))

	times := make([][]time.Duration, len(lines))
	var warm, done sync.WaitGroup
	start := make(chan struct{})
	var until time.Time
	for i, token := range lines {
		warm.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			mine := &pod{token: token, config: &tls.Config{RootCAs: trusted}}
			mine.beat(20)
			warm.Done()
			<-start
			for time.Now().Before(until) {
				began := time.Now()
				mine.beat(1)
				times[i] = append(times[i], time.Since(began))
			}
		}()
	}
	warm.Wait()
	before := cpu()
	began := time.Now()
	until = began.Add(time.Duration(*seconds * float64(time.Second)))
	close(start)
	done.Wait()
	took := time.Since(began).Seconds()

	all := slices.Sorted(slices.Values(slices.Concat(times...)))
	ms := func(part float64) float64 { return all[int(float64(len(all)-1)*part)].Seconds() * 1000 }
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"count": len(all), "per_s": float64(len(all)) / took, "p50_ms": ms(0.5), "p99_ms": ms(0.99),
		"cpu_s": cpu() - before,
	}))
}

func cpu() float64 {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
