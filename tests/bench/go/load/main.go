// Posts one body again and again over N kept-alive HTTP/1.1 connections, each waiting for its answer, and
// prints the times as one JSON object: count, per_s, p50_ms, p99_ms.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

func main() {
	url, ca := flag.String("url", "", "where to post"), flag.String("ca", "", "PEM bundle to trust")
	token, file := flag.String("token", "", "bearer token"), flag.String("body", "", "file to post")
	connections, count := flag.Int("connections", 1, ""), flag.Int("count", 1000, "posts in all")
	warmUp, expect := flag.Int("warm-up", 0, "posts before that"), flag.Int("expect", 200, "status")
	flag.Parse()
	bundle, err := os.ReadFile(*ca)
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(bundle)
	body, err := os.ReadFile(*file)
	check(err)

	post := func(client *http.Client) time.Duration {
		asked, err := http.NewRequest("POST", *url, bytes.NewReader(body))
		check(err)
		asked.Header.Set("Content-Type", "application/json")
		if *token != "" {
			asked.Header.Set("Authorization", "Bearer "+*token)
		}
		began := time.Now()
		answer, err := client.Do(asked)
		check(err)
		text, err := io.ReadAll(answer.Body)
		took := time.Since(began)
		check(err)
		answer.Body.Close()
		if answer.StatusCode != *expect {
			log.Fatalf("answered with %d: %.400s", answer.StatusCode, text)
		}
		return took
	}

	each, times := *count / *connections, make([][]time.Duration, *connections)
	var warm, done sync.WaitGroup
	start := make(chan struct{})
	for i := range *connections {
		warm.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}}
			for range 1 + *warmUp / *connections {
				post(client)
			}
			warm.Done()
			<-start
			for range each {
				times[i] = append(times[i], post(client))
			}
		}()
	}
	warm.Wait()
	began := time.Now()
	close(start)
	done.Wait()
	seconds := time.Since(began).Seconds()

	all := slices.Sorted(slices.Values(slices.Concat(times...)))
	ms := func(part float64) float64 { return all[int(float64(len(all)-1)*part)].Seconds() * 1000 }
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"count": len(all), "per_s": float64(len(all)) / seconds, "p50_ms": ms(0.5), "p99_ms": ms(0.99),
	}))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
