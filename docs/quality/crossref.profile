{
 "version": 1,
 "fingerprint": "13d0f1cb8bcea86a2d905524f61c2585",
 "score_lo": 3,
 "score_hi": 4,
 "side_layer": 3,
 "sense_power": 4.5,
 "contexts": 2,
 "context_tokens": 2000,
 "check_layer": 1,
 "sink_tokens": 1,
 "strategy": "qs",
 "ratio": 0.0664475,
 "loss": 0.225,
 "isolated": 2.0,
 "reuse_kl": 2.43652,
 "measured": "2026-11-27, 256 lines of lines.jsonl searched, 256 others measured; kvblend-bench calibrate",
 "ratios": [
  0.0,
  0.02,
  0.05,
  0.1,
  0.15,
  0.2,
  0.3
 ],
 "losses": {
  "reuse": [
   1.05524,
   null,
   null,
   null,
   null,
   null,
   null
  ],
  "hkvd": [
   null,
   0.872093,
   0.838539,
   0.837952,
   0.836516,
   0.805145,
   0.718832
  ],
  "sink": [
   null,
   1.05489,
   1.05473,
   1.05088,
   0.866063,
   0.759432,
   0.554748
  ],
  "query": [
   null,
   0.918702,
   0.66582,
   0.403653,
   0.27512,
   0.208816,
   0.143398
  ],
  "qs": [
   null,
   0.681921,
   0.315394,
   0.0405996,
   0.00408018,
   0.000920744,
   0.00097142
  ],
  "side": [
   null,
   0.813032,
   0.443131,
   0.190274,
   0.0336174,
   0.00101756,
   0.000923921
  ]
 }
}