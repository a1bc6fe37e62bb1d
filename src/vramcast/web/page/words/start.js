/** Words of the front page, and of files that are dropped anywhere. */
export const START_WORDS = {
  "page.start": { en: "Start", zh: "首页" },
  "title.start": { en: "Will it fit, on what, and why did it crash?", zh: "放得下吗？用什么卡？为什么崩溃？" },
  "start.lead": {
    en: "Memory, time and price of training and serving, computed before you rent a GPU and checked against {runs} "
      + "measured figures.",
    zh: "租卡之前先算出训练与推理的显存、时间与价格，并与 {runs} 个实测值对照。",
  },
  "start.mode": { en: "What for", zh: "用途" },
  "mode.train": { en: "Train all weights", zh: "全量训练" },
  "mode.lora": { en: "Fine-tune, LoRA", zh: "LoRA 微调" },
  "mode.qlora": { en: "Fine-tune, QLoRA", zh: "QLoRA 微调" },
  "mode.serve": { en: "Serve", zh: "推理服务" },
  "start.whole": { en: "The whole answer", zh: "查看完整答案" },
  "door.fit": { en: "Does it fit?", zh: "放得下吗？" },
  "door.fit.about": { en: "Each line is computed as you look. Open one and change it.", zh: "每一行都是实时计算，点开即可修改。" },
  "door.rent": { en: "What should I rent?", zh: "该租什么？" },
  "door.rent.about": {
    en: "Every plan on every machine on offer, best first. What one card costs where it is cheapest:",
    zh: "比较所有在售机器上的全部方案，最好的在前。单卡最低价：",
  },
  "door.rent.go": { en: "Find machines for {model}", zh: "为 {model} 找机器" },
  "door.crash": { en: "Why did it crash?", zh: "为什么崩溃？" },
  "door.crash.about": {
    en: "Paste the error, or drop a log or a memory snapshot: cause, figures, fixes.",
    zh: "粘贴报错，或拖入日志、显存快照：给出原因、数字与解决办法。",
  },
  "door.crash.go": { en: "Find the cause", zh: "查找原因" },
  "door.crash.example": { en: "Or see an example", zh: "或看一个示例" },
  "start.hour": { en: "{price} an hour", zh: "每小时 {price}" },
  "start.drop": {
    en: "Or drop a file anywhere on any page: a model's config.json, a GGUF, a log, a memory snapshot, a launch script.",
    zh: "也可把文件拖到任何页面的任何位置：模型的 config.json、GGUF、日志、显存快照、启动脚本。",
  },
  "example.qlora": { en: "Fine-tune {model} with QLoRA on {gpus}", zh: "在 {gpus} 上用 QLoRA 微调 {model}" },
  "example.train": { en: "Train {model} on {gpus}", zh: "在 {gpus} 上训练 {model}" },
  "example.serve": { en: "Serve {model} to {users} users on {gpus}", zh: "在 {gpus} 上为 {users} 个用户部署 {model}" },
  "drop.here": { en: "Drop it anywhere", zh: "在任意位置松开" },
  "drop.kinds": {
    en: "config.json, GGUF, log, memory snapshot, launch script",
    zh: "config.json、GGUF、日志、显存快照、启动脚本",
  },
  "drop.reading": { en: "Reading {name}", zh: "正在读取 {name}" },
  "drop.is": { en: "{name} describes {model}.", zh: "{name} 描述的是 {model}。" },
  "drop.like": {
    en: "{name} has the shape of {model}, which is asked about in its place.",
    zh: "{name} 的结构与 {model} 相同，按后者计算。",
  },
  "drop.command": {
    en: "{name} is read where it lies, by the command line:",
    zh: "{name} 由命令行在本地读取：",
  },
};
