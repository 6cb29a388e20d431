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
 "ratio": 0.0663417,
 "loss": 0.225,
 "isolated": 2.0,
 "reuse_kl": 2.43651,
 "measured": "2026-11-28, 256 lines of lines.jsonl searched, 256 others measured; kvblend-bench calibrate",
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
   1.00974,
   null,
   null,
   null,
   null,
   null,
   null
  ],
  "hkvd": [
   null,
   0.851226,
   0.817971,
   0.819533,
   0.816554,
   0.781598,
   0.661709
  ],
  "sink": [
   null,
   1.0088,
   1.00834,
   1.00503,
   0.845436,
   0.743881,
   0.550399
  ],
  "query": [
   null,
   0.796657,
   0.575983,
   0.354885,
   0.231641,
   0.198479,
   0.108674
  ],
  "qs": [
   null,
   0.64475,
   0.318287,
   0.0328607,
   0.0129245,
   0.000534594,
   0.000583429
  ],
  "side": [
   null,
   0.717771,
   0.439973,
   0.153882,
   0.0310181,
   0.0096206,
   0.000574959
  ]
 }
}