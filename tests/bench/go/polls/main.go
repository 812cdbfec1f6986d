// Many webhook workers that poll the standings once a second each, on a TLS connection that each keeps, with
// the ETag of what it has. Prints a line for each new document that a poller gets: its ETag, milliseconds since
// 1970, and bytes. Ends when its standard input does.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

var (
	address = flag.String("address", "", "HOST:PORT")
	ca      = flag.String("ca", "", "PEM bundle to trust")
	token   = flag.String("token", "", "file with the bearer token")
	pollers = flag.Int("pollers", 400, "how many")
	every   = flag.Duration("every", time.Second, "how often each asks")
)

var printing sync.Mutex

func poll(config *tls.Config, bearer string) {
	time.Sleep(time.Duration(rand.Int63n(int64(*every))))
	conn, err := tls.Dial("tcp", *address, config)
	check(err)
	answers, etag := bufio.NewReader(conn), ""
	for ticks := time.Tick(*every); ; <-ticks {
		_, err := fmt.Fprintf(conn, "GET /v1/standings HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
			"Accept-Encoding: gzip\r\nIf-None-Match: %s\r\n\r\n", *address, bearer, etag)
		check(err)
		answer, err := http.ReadResponse(answers, nil)
		check(err)
		text, err := io.ReadAll(answer.Body)
		check(err)
		switch answer.StatusCode {
		case 200:
			etag = answer.Header.Get("ETag")
			printing.Lock()
			fmt.Println(etag, time.Now().UnixMilli(), len(text))
			printing.Unlock()
		case 304:
		default:
			log.Fatalf("answered with %d: %.400s", answer.StatusCode, text)
		}
		if answer.Close {
			log.Fatal("the connection was not kept")
		}
	}
}

func main() {
	flag.Parse()
	bundle, err := os.ReadFile(*ca)
	check(err)
	bearer, err := os.ReadFile(*token)
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(bundle)
	for range *pollers {
		go poll(&tls.Config{RootCAs: trusted}, strings.TrimSpace(string(bearer)))
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	check(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
